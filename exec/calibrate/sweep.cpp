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
    const OpId id = builder_.op(op, accesses, serial_ && last_.valid() ? std::vector<OpId>{last_} : std::vector<OpId>{});
    last_ = id;
  }
  void one_after_the_other() { serial_ = true; }
  void fill(DType type, std::int64_t bytes, LaneId lane) {
    const std::string name = fmt::format("fill.{}.{}", name_of(type), bytes);
    Layout layout;
    layout.name = name;
    layout.tensors.push_back({name, type, {bytes / size_of(type)}, Bytes(0)});
    const BufferId buffer =
        builder_.buffer(name, Space::Device, Category::Other, Bytes(bytes), builder_.layout(std::move(layout)), true);
    Kernel kernel;
    kernel.kind = Kernel::Kind::Stream;
    kernel.dtype = type;
    kernel.bytes = Bytes(bytes);
    Label label;
    label.segment = builder_.name("fill");
    const WorkId work = builder_.work(Work{{kernel}});
    for (int i = 0; i < kRepetitions; ++i) builder_.compute(lane, label, work, {write(buffer)}, {});
  }
  ScheduleBuilder& builder() { return builder_; }

 private:
  ScheduleBuilder builder_;
  bool serial_ = false;
  OpId last_;
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

enum class Company : std::uint8_t { Alone, Together };

SweepSchedule copies(Company company) {
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
  if (company == Company::Alone) w.one_after_the_other();
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
  const bool together = company == Company::Together;
  return {together ? "sweep of copies, all ways at once" : "sweep of copies, 1 rank", w.builder().finish(), together};
}

// Zero fills of flat memory, as ZeRO's gradient buffers are filled: what a device writes per second.
SweepSchedule fills() {
  constexpr std::int64_t kLargestFill = std::int64_t{1} << 28;
  Writer w(1);
  w.builder().begin_program("fills", {RankId(0)});
  const LaneId lane = w.builder().lane("compute", Engine::Compute);
  for (const DType type : {DType::Fp32, DType::Bf16})
    for (std::int64_t size = kSmallest; size <= kLargestFill; size *= kStep) w.fill(type, size, lane);
  return {"sweep of zero fills, 1 rank", w.builder().finish()};
}

}  // namespace

std::vector<SweepSchedule> sweep_schedules(const std::set<std::uint32_t>& member_counts) {
  std::vector<SweepSchedule> schedules;
  schedules.push_back(messages());
  for (const std::uint32_t members : member_counts)
    if (members >= 2) schedules.push_back(collectives(members));
  for (const Company company : {Company::Alone, Company::Together}) schedules.push_back(copies(company));
  schedules.push_back(fills());
  return schedules;
}

}  // namespace steptwin
