#include "schedule/mechanisms/emitter.h"

#include <algorithm>
#include <utility>

#include "schedule/base/error.h"

namespace steptwin {

void Emitter::begin_program(std::string name, std::vector<RankId> ranks, std::vector<std::int32_t> stages) {
  builder_->begin_program(std::move(name), std::move(ranks), std::move(stages));
  uses_.clear();
  known_ = {};
  last_ = {};
  lanes_ = 0;
}

LaneId Emitter::lane(std::string name, Engine engine, Priority priority) {
  invariant(++lanes_ <= kMaxLanes, "a program has at most 12 lanes");
  return builder_->lane(std::move(name), engine, priority);
}

BufferId Emitter::buffer(Category category, Bytes bytes, LayoutId layout) {
  uses_.emplace_back();
  return builder_->buffer("", Space::Device, category, bytes, layout);
}

BufferId Emitter::resident(std::string_view name, Category category, Bytes bytes, LayoutId layout, Space space) {
  uses_.emplace_back();
  return builder_->buffer(name, space, category, bytes, layout, true);
}

BufferId Emitter::on_host(Category category, Bytes bytes, LayoutId layout) {
  uses_.emplace_back();
  return builder_->buffer("", Space::Pageable, category, bytes, layout);
}

std::vector<OpId> Emitter::dependencies(LaneId lane, const std::vector<Access>& accesses) {
  Ends wanted{};
  const auto want = [&](std::uint32_t end, std::size_t on) { wanted[on] = std::max(wanted[on], end); };
  for (const Access& access : accesses) {
    if (access.mode == AccessMode::Hold) continue;
    const Use& use = uses_[access.buffer.value];
    want(use.writer, use.writer_lane);
    if (access.mode == AccessMode::Read) continue;
    for (std::size_t on = 0; on < lanes_; ++on) want(use.readers[on], on);
  }
  if (extra_.valid()) want(uses_[extra_.value].writer, uses_[extra_.value].writer_lane);
  extra_ = BufferId();
  for (const auto& [op, on] : follows_) want(op.value + 1, on.value);
  follows_.clear();
  std::vector<OpId> deps;
  Ends& known = known_[lane.value];
  for (std::size_t on = 0; on < lanes_; ++on) {
    if (on == lane.value || wanted[on] <= known[on]) continue;
    known[on] = wanted[on];
    deps.emplace_back(wanted[on] - 1);
  }
  return deps;
}

void Emitter::note(OpId op, LaneId lane, const std::vector<Access>& accesses) {
  last_[lane.value] = op;
  for (const Access& access : accesses) {
    if (access.mode == AccessMode::Hold) continue;
    Use& use = uses_[access.buffer.value];
    if (access.mode == AccessMode::Read) {
      use.readers[lane.value] = op.value + 1;
      continue;
    }
    use = {op.value + 1, static_cast<std::uint8_t>(lane.value), {}};
  }
}

OpId Emitter::compute(LaneId lane, const Label& label, WorkId work, const std::vector<Access>& accesses) {
  const OpId id = builder_->compute(lane, label, work, accesses, dependencies(lane, accesses));
  note(id, lane, accesses);
  return id;
}

OpId Emitter::op(Op op, const std::vector<Access>& accesses) {
  const LaneId lane = op.lane;
  const OpId id = builder_->op(std::move(op), accesses, dependencies(lane, accesses));
  note(id, lane, accesses);
  return id;
}

OpId Emitter::host_wait(OpId target) {
  Op op;
  op.body = HostWait{target};
  return builder_->op(std::move(op), {}, {});
}

}  // namespace steptwin
