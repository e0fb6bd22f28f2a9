// Where the ranks of a step machine stand, for people.
#include <fmt/format.h>

#include <algorithm>

#include "exec/cpu/step_machine.h"
#include "schedule/ir/text.h"

namespace steptwin {

std::uint32_t StepMachine::slowest_step() const {
  std::uint32_t step = steps_;
  for (const RankState& r : ranks_) step = std::min(step, r.step);
  return step;
}

std::vector<std::string> StepMachine::positions() const {
  std::vector<std::string> lines;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) lines.push_back(position(r));
  return lines;
}

std::string StepMachine::position(std::uint32_t rank) const {
  const RankState& r = ranks_[rank];
  const std::uint32_t number = r.sim->rank.value;
  if (r.step == steps_) return fmt::format("rank {} has finished", number);
  std::uint32_t op = 0;
  while (op < r.done.size() && r.done[op]) ++op;
  if (op == r.done.size()) return fmt::format("rank {} ends its step {}", number, r.step);
  const std::uint32_t first = schedule_.programs[r.tables->program.value].first_op.value;
  const std::string line = fmt::format("rank {} (step {}) stands at `{}`", number, r.step, print_op(schedule_, OpId(first + op)));
  const OpNode& node = r.tables->nodes[op];
  if (node.kind == OpNode::Kind::HostWait) return line + ": its issuing thread waits";
  const LaneState& lane = r.lanes[node.lane];
  switch (lane.wait) {
    case LaneWait::Posted:
      return line + ": waits for its counterpart";
    case LaneWait::Event:
      return line + fmt::format(": waits for op {}", r.list->event_op[lane.event]);
    case LaneWait::Runnable:
      return line + ": runs";
    case LaneWait::Nothing:
      return line + ": is not issued";
  }
  return line;
}

}  // namespace steptwin
