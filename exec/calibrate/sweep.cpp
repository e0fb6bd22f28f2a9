#include "exec/calibrate/sweep.h"

#include <fmt/format.h>

#include "schedule/ir/builder.h"

namespace steptwin {
namespace {

constexpr std::int64_t kSmallest = std::int64_t{1} << 10, kLargest = std::int64_t{1} << 24;  // 1 KiB, 16 MiB
constexpr std::int64_t kStep = 4;    // log-log interpolation over a gap of 4 is within 10 % (specs/cost_models.md 6)
constexpr int kRepetitions = 4;      // of each op in one step
constexpr std::int64_t kGrain = 64;  // bytes: every shard is whole cache lines

// A multiple of grain x members, so that all shards are alike; the smallest one rounded down, the others up, to cover the whole range.
std::int64_t shared_size(std::int64_t bytes, std::uint32_t members) {
  const std::int64_t unit = kGrain * members;
  return bytes == kSmallest ? std::max(unit, bytes / unit * unit) : (bytes + unit - 1) / unit * unit;
}

Mesh ranks(std::uint32_t count) { return Mesh{{{"dp", count}}}; }

std::vector<RankId> all_ranks(std::uint32_t count) {
  std::vector<RankId> list;
  for (std::uint32_t r = 0; r < count; ++r) list.emplace_back(r);
  return list;
}

class Writer {
 public:
  explicit Writer(std::uint32_t ranks_in_all) : builder_(ranks(ranks_in_all)) {}

  BufferId resident(const std::string& name, Space space, std::int64_t bytes) {
    return builder_.buffer(name, space, Category::Other, Bytes(bytes), {}, true);
  }
  void repeat(const OpBody& body, LaneId lane, const std::vector<Access>& accesses) {
    for (int i = 0; i < kRepetitions; ++i) once(body, lane, accesses);
  }
  void once(const OpBody& body, LaneId lane, const std::vector<Access>& accesses) {
    Op op;
    op.body = body;
    op.lane = lane;
    builder_.op(op, accesses, {});
  }
  ScheduleBuilder& builder() { return builder_; }

 private:
  ScheduleBuilder builder_;
};

SweepSchedule collectives(std::uint32_t members) {
  Writer w(members);
  const CommId comm = w.builder().communicator("all", {"dp"});
  w.builder().begin_program("all", all_ranks(members));
  const LaneId lane = w.builder().lane("network", Engine::Network);
  for (std::int64_t size = kSmallest; size <= kLargest; size *= kStep) {
    const Bytes bytes(shared_size(size, members));
    const BufferId in = w.resident(fmt::format("in{}", size), Space::Device, bytes.value);
    const BufferId out = w.resident(fmt::format("out{}", size), Space::Device, bytes.value);
    const Part share{Part::Kind::Piece, 0, members};
    w.repeat(AllGather{comm, DType::Fp32, bytes}, lane, {read(in, share), write(out)});
    w.repeat(Broadcast{comm, DType::Fp32, bytes, Peer{0, false}}, lane, {update(in)});
    w.repeat(AllToAll{comm, DType::Fp32, bytes}, lane, {read(in), write(out)});
    for (const DType type : {DType::Fp32, DType::Bf16}) {
      w.repeat(ReduceScatter{comm, type, bytes}, lane, {read(in), write(out, share)});
      w.repeat(AllReduce{comm, type, bytes, AllReduce::Reduction::Sum}, lane, {update(in)});
    }
  }
  return {fmt::format("sweep of collectives, {} ranks", members), w.builder().finish()};
}

SweepSchedule messages() {
  Writer w(2);
  const CommId comm = w.builder().communicator("pair", {"dp"});
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    w.builder().begin_program(rank == 0 ? "first" : "second", {RankId(rank)});
    const LaneId lane = w.builder().lane("network", Engine::Network);
    for (std::int64_t size = kSmallest; size <= kLargest; size *= kStep) {
      const BufferId buffer = w.resident(fmt::format("b{}", size), Space::Device, size);
      const Peer other{rank == 0 ? 1 : 0, false};
      for (int i = 0; i < kRepetitions; ++i) {  // there and back: what was received is used before it is overwritten
        const bool sends = (i % 2 == 0) == (rank == 0);
        if (sends)
          w.once(Send{comm, DType::Fp32, Bytes(size), other}, lane, {read(buffer)});
        else
          w.once(Recv{comm, DType::Fp32, Bytes(size), other}, lane, {write(buffer)});
      }
    }
  }
  return {"sweep of messages, 2 ranks", w.builder().finish()};
}

SweepSchedule copies() {
  struct Path {
    Space from, to;
    Engine engine;
  };
  constexpr Path kPaths[] = {{Space::Device, Space::Device, Engine::Compute},    {Space::Pinned, Space::Device, Engine::CopyUp},
                             {Space::Pageable, Space::Device, Engine::CopyUp},   {Space::Device, Space::Pinned, Engine::CopyDown},
                             {Space::Device, Space::Pageable, Engine::CopyDown}, {Space::Pageable, Space::Pinned, Engine::Host}};
  Writer w(1);
  w.builder().begin_program("copies", {RankId(0)});
  std::vector<LaneId> lanes;
  for (std::size_t p = 0; p < std::size(kPaths); ++p) lanes.push_back(w.builder().lane(fmt::format("lane{}", p), kPaths[p].engine));
  for (std::int64_t size = kSmallest; size <= kLargest; size *= kStep) {
    for (std::size_t p = 0; p < std::size(kPaths); ++p) {
      const BufferId from = w.resident(fmt::format("from{}_{}", p, size), kPaths[p].from, size);
      const BufferId to = w.resident(fmt::format("to{}_{}", p, size), kPaths[p].to, 2 * size);
      const Part half{Part::Kind::Piece, 0, 2}, quarter{Part::Kind::Piece, 0, 4};
      w.repeat(Copy{DType::Fp32, DType::Fp32, Bytes(size)}, lanes[p], {read(from), write(to, half)});
      w.repeat(Copy{DType::Fp32, DType::Bf16, Bytes(size)}, lanes[p], {read(from), write(to, quarter)});
      w.repeat(Copy{DType::Bf16, DType::Fp32, Bytes(size)}, lanes[p], {read(from), write(to)});
    }
  }
  return {"sweep of copies, 1 rank", w.builder().finish()};
}

}  // namespace

std::vector<SweepSchedule> sweep_schedules(const std::set<std::uint32_t>& member_counts) {
  std::vector<SweepSchedule> schedules;
  schedules.push_back(messages());
  for (const std::uint32_t members : member_counts)
    if (members >= 2) schedules.push_back(collectives(members));
  schedules.push_back(copies());
  return schedules;
}

}  // namespace steptwin
