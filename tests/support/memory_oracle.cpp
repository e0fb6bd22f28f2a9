#include "tests/support/memory_oracle.h"

#include <algorithm>

namespace steptwin::test {
namespace {

bool matches(const OracleBuffer& b, Space space, std::size_t category) {
  return b.buffer->space == space && (category == kCategories || static_cast<std::size_t>(b.buffer->category) == category);
}

}  // namespace

MemoryOracle::MemoryOracle(const Schedule& schedule, const Program& program, const std::vector<Span>& spans,
                           std::vector<std::int64_t> launches)
    : launches_(std::move(launches)), lanes_(static_cast<std::uint32_t>(program.lanes.size())) {
  for (const Span& span : spans) issue_.push_back(ns(span.issue));
  for (std::uint32_t id = 0; id < program.buffers.size(); ++id) {
    OracleBuffer b;
    b.buffer = &program.buffers[id];
    b.resident = b.buffer->resident && !b.buffer->lazy;
    b.live_from = INT64_MAX;
    for (std::uint32_t i = 0; i < spans.size(); ++i) {
      const Op& op = schedule.ops[spans[i].op.value];
      const auto accesses = schedule.accesses_of(spans[i].op);
      if (std::none_of(accesses.begin(), accesses.end(), [&](const Access& a) { return a.buffer.value == id; }) && op.guard.value != id)
        continue;
      if (!b.home.valid() && !op.lane.valid()) continue;  // a HostWait begins no life
      if (!b.home.valid()) b.first = i, b.home = op.lane;
      b.last = i;
      while (op.group.valid() && b.last + 1 < spans.size() && schedule.ops[spans[b.last + 1].op.value].group == op.group) ++b.last;
      b.live_from = std::min(b.live_from, ns(spans[i].start));
      b.live_to = std::max(b.live_to, ns(spans[i].end));
      if (op.lane != b.home) b.released_at = std::max(b.released_at, ns(spans[i].end));
    }
    if (!b.resident && !b.home.valid()) continue;  // nobody uses it
    if (!b.resident) {
      b.allocated_at = host_before(b.first);
      b.dropped_at = issue_[b.last];
      b.released_at = std::max(b.released_at, b.dropped_at);
      if (b.buffer->lazy) b.last = UINT32_MAX, b.dropped_at = b.released_at = b.live_to = INT64_MAX;
    }
    buffers_.push_back(b);
  }
}

bool MemoryOracle::uses(Space space) const {
  return std::any_of(buffers_.begin(), buffers_.end(), [&](const OracleBuffer& b) { return b.buffer->space == space; });
}

std::int64_t MemoryOracle::resident(Space space) const {
  std::int64_t sum = 0;
  for (const OracleBuffer& b : buffers_) sum += b.resident && b.buffer->space == space ? b.buffer->bytes.value : 0;
  return sum;
}

std::int64_t MemoryOracle::level(Space space, Curve curve, std::int64_t at, std::size_t category) const {
  std::int64_t sum = 0;
  for (const OracleBuffer& b : buffers_) {
    if (!matches(b, space, category)) continue;
    const std::int64_t from = curve == Curve::Live ? b.live_from : b.allocated_at;
    const std::int64_t to = curve == Curve::Live ? b.live_to : curve == Curve::Active ? b.released_at : b.dropped_at;
    if (b.resident || (from <= at && at < to)) sum += b.buffer->bytes.value;
  }
  return sum;
}

std::int64_t MemoryOracle::level_at_op(Space space, Curve curve, std::uint32_t op, std::size_t category) const {
  std::int64_t sum = 0;
  for (const OracleBuffer& b : buffers_) {
    if (!matches(b, space, category)) continue;
    const bool held = op <= b.last || (curve == Curve::Active && b.released_at > host_before(op));
    if (b.resident || (b.first <= op && held)) sum += b.buffer->bytes.value;
  }
  return sum;
}

std::int64_t MemoryOracle::lane_active(Space space, LaneId home, std::uint32_t op) const {
  std::int64_t sum = 0;
  for (const OracleBuffer& b : buffers_)
    if (!b.resident && b.buffer->space == space && b.home == home && b.first <= op && (op <= b.last || b.released_at > host_before(op)))
      sum += b.buffer->bytes.value;
  return sum;
}

std::int64_t MemoryOracle::reserved_at_op(Space space, std::uint32_t op) const {
  std::int64_t sum = resident(space);
  for (std::uint32_t lane = 0; lane < lanes_; ++lane) {
    std::int64_t high = 0;
    for (std::uint32_t k = 0; k <= op; ++k) high = std::max(high, lane_active(space, LaneId(lane), k));
    sum += high;
  }
  return sum;
}

OraclePeak MemoryOracle::peak(Space space, Curve curve) const {
  OraclePeak peak{resident(space), 0, 0xffffffffu};
  const auto raise = [&peak](std::int64_t bytes, std::int64_t at, std::uint32_t op) {
    if (bytes > peak.bytes) peak = {bytes, at, op};
  };
  if (curve != Curve::Live) {
    for (std::uint32_t op = 0; op < issue_.size(); ++op)
      raise(curve == Curve::Reserved ? reserved_at_op(space, op) : level_at_op(space, curve, op), host_before(op), op);
    return peak;
  }
  std::vector<std::int64_t> instants;
  for (const OracleBuffer& b : buffers_)
    if (!b.resident) instants.push_back(b.live_from);
  std::sort(instants.begin(), instants.end());
  for (const std::int64_t at : instants) raise(level(space, curve, at), at, 0);
  return peak;
}

}  // namespace steptwin::test
