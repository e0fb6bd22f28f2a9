#include "exec/comm/local.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "exec/comm/members.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

bool moves_nothing(const std::vector<MemberMemory>& members) {
  return std::all_of(members.begin(), members.end(), [](const MemberMemory& m) { return m.in.empty() && m.out.empty(); });
}

// Combines bytes [at, at + bytes) of every input into `to` of every view in `outputs` at out_at. Inputs are read before outputs are
// written, block by block, so an output may be one of the inputs at the same place.
class Reducer {
 public:
  Reducer(const std::vector<MemberMemory>& members, DType dtype, Combine how) : members_(members), dtype_(dtype), how_(how) {}

  void run(std::int64_t at, std::int64_t bytes, const std::vector<const FlatView*>& outputs, std::int64_t out_at) {
    constexpr std::int64_t kBlock = 16384;  // stays in the first-level cache beside the inputs
    alignas(16) std::byte block[kBlock];
    while (bytes > 0) {
      std::int64_t size = std::min(bytes, kBlock);
      from_.clear();
      for (const MemberMemory& member : members_) {
        const FlatView::Stretch in = member.in.from(at);
        size = std::min(size, in.bytes);
        from_.push_back(in.data);
      }
      size = std::max(size - size % size_of(dtype_), std::min(size, size_of(dtype_)));
      combine(block, from_, size / size_of(dtype_), dtype_, how_);
      const FlatView result({{block, size}});
      for (const FlatView* out : outputs) copy_bytes(result, 0, *out, out_at, size);
      at += size, out_at += size, bytes -= size;
    }
  }

 private:
  const std::vector<MemberMemory>& members_;
  DType dtype_;
  Combine how_;
  std::vector<const std::byte*> from_;
};

void all_reduce(const AllReduce& op, std::vector<MemberMemory>& members) {
  std::vector<const FlatView*> outputs;
  for (std::size_t i = 0; i < members.size(); ++i) {
    need(members[i].in, op.bytes.value, "input", i);
    need(members[i].out, op.bytes.value, "output", i);
    outputs.push_back(&members[i].out);
  }
  Reducer(members, op.dtype, op.reduction == AllReduce::Reduction::Sum ? Combine::Sum : Combine::Max).run(0, op.bytes.value, outputs, 0);
}

void reduce_scatter(const ReduceScatter& op, std::vector<MemberMemory>& members) {
  if (shard_of(op.bytes.value, 0, members.size()).size % size_of(op.dtype) != 0)
    throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("a reduce-scatter of {} bytes over {} members would cut an element",
                                                                       op.bytes.value, members.size()));
  for (std::size_t i = 0; i < members.size(); ++i) {
    need(members[i].in, op.bytes.value, "input", i);
    need(members[i].out, shard_of(op.bytes.value, i, members.size()).size, "output", i);
  }
  Reducer reducer(members, op.dtype, Combine::Sum);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const ByteRange shard = shard_of(op.bytes.value, i, members.size());
    reducer.run(shard.first, shard.size, {&members[i].out}, 0);
  }
}

void all_gather(const AllGather& op, std::vector<MemberMemory>& members) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    const ByteRange shard = shard_of(op.bytes.value, i, members.size());
    need(members[i].in, shard.size, "input", i);
    for (std::size_t j = 0; j < members.size(); ++j) {
      need(members[j].out, op.bytes.value, "output", j);
      copy_bytes(members[i].in, 0, members[j].out, shard.first, shard.size);
    }
  }
}

void broadcast(const Broadcast& op, std::vector<MemberMemory>& members) {
  const auto root = op.root.resolve(0, static_cast<std::uint32_t>(members.size()));
  need(members[root].in, op.bytes.value, "input", root);
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i == root) continue;
    need(members[i].out, op.bytes.value, "output", i);
    copy_bytes(members[root].in, 0, members[i].out, 0, op.bytes.value);
  }
}

// Piece j of member i becomes piece i of member j. In place is allowed: what members send is set aside first.
void all_to_all(const AllToAll& op, std::vector<MemberMemory>& members) {
  const auto n = static_cast<std::int64_t>(members.size());
  if (op.bytes.value % n != 0)
    throw EnvironmentError(EnvironmentError::Kind::Device,
                           fmt::format("an all-to-all of {} bytes does not split among {} members", op.bytes.value, n));
  const std::int64_t piece = op.bytes.value / n;
  std::vector<std::byte> sent(static_cast<std::size_t>(op.bytes.value * n));
  const FlatView aside({{sent.data(), op.bytes.value * n}});
  for (std::size_t i = 0; i < members.size(); ++i) {
    need(members[i].in, op.bytes.value, "input", i);
    need(members[i].out, op.bytes.value, "output", i);
    copy_bytes(members[i].in, 0, aside, static_cast<std::int64_t>(i) * op.bytes.value, op.bytes.value);
  }
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      copy_bytes(aside, i * op.bytes.value + j * piece, members[static_cast<std::size_t>(j)].out, i * piece, piece);
}

void message(Bytes bytes, std::vector<MemberMemory>& members) {
  need(members[0].in, bytes.value, "input", 0);
  need(members[1].out, bytes.value, "output", 1);
  copy_bytes(members[0].in, 0, members[1].out, 0, bytes.value);
}

}  // namespace

FlatView::FlatView(std::vector<Stretch> stretches) {
  for (const Stretch& s : stretches) add(s.data, s.bytes);
}

void FlatView::add(std::byte* data, std::int64_t bytes) {
  if (bytes <= 0) return;
  begins_.push_back(total_);
  stretches_.push_back({data, bytes});
  total_ += bytes;
}

FlatView::Stretch FlatView::from(std::int64_t at) const {
  invariant(at >= 0 && at < total_, "a place inside the view");
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), at);
  const auto index = static_cast<std::size_t>(after - begins_.begin()) - 1;
  const std::int64_t inside = at - begins_[index];
  return {stretches_[index].data + inside, stretches_[index].bytes - inside};
}

void copy_bytes(const FlatView& from, std::int64_t from_at, const FlatView& to, std::int64_t to_at, std::int64_t bytes) {
  each_stretch(from, from_at, to, to_at, bytes,
               [](std::byte* target, const std::byte* source, std::size_t size) { std::memmove(target, source, size); });
}

void communicate(const OpBody& body, std::vector<MemberMemory>& members) {
  if (moves_nothing(members)) return;
  std::visit(Overloaded{
                 [&](const AllReduce& op) { all_reduce(op, members); },
                 [&](const ReduceScatter& op) { reduce_scatter(op, members); },
                 [&](const AllGather& op) { all_gather(op, members); },
                 [&](const Broadcast& op) { broadcast(op, members); },
                 [&](const AllToAll& op) { all_to_all(op, members); },
                 [&](const Send& op) { message(op.bytes, members); },
                 [&](const Recv& op) { message(op.bytes, members); },
                 [](const Compute&) { throw InternalError("a compute op is no communication"); },
                 [](const Copy&) { throw InternalError("a copy is no communication"); },
                 [](const HostWait&) { throw InternalError("a host wait is no communication"); },
             },
             body);
}

}  // namespace steptwin
