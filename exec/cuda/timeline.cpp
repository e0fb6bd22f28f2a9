#include "exec/cuda/timeline.h"

#include <algorithm>

namespace steptwin {

Timeline::Timeline(const Matching& matching, const std::vector<InstructionList>& lists, std::uint32_t steps)
    : matching_(matching),
      measured_(matching.ranks.size()),
      complete_(matching.ranks.size()),
      times_(matching.ranks.size()),
      clocks_(matching.ranks.size()) {
  for (std::size_t t = 0; t < lists.size(); ++t) waits_.push_back(waits_of(matching.tables[t], lists[t]));
  for (auto& rank : measured_) rank.resize(steps);
}

Timeline::Waits Timeline::waits_of(const ProgramTables& tables, const InstructionList& list) {
  using Kind = Instruction::Kind;
  Waits waits;
  const std::size_t ops = tables.nodes.size() - 1;
  waits.before.resize(ops);
  waits.group_first.resize(ops);
  waits.group_size.assign(ops, 1);
  for (std::uint32_t op = 0; op < ops; ++op) waits.group_first[op] = op;
  for (const Instruction& instruction : list.instructions) {
    if (instruction.kind == Kind::Wait) waits.before[instruction.op].push_back(list.event_op[instruction.value]);
    if (instruction.kind == Kind::HostWait) waits.host_waits.push_back(instruction.op);
    if (instruction.kind != Kind::Group) continue;
    waits.group_size[instruction.op] = instruction.value;
    for (std::uint32_t op = instruction.op; op < instruction.op + instruction.value; ++op) waits.group_first[op] = instruction.op;
  }
  return waits;
}

void Timeline::enqueued(std::uint32_t step, std::vector<std::pair<std::uint32_t, std::uint32_t>> members) {
  log_.push_back({step, std::move(members)});
}

void Timeline::measured(std::uint32_t rank, std::uint32_t step, std::vector<Measured> ops) {
  measured_[rank][step] = std::move(ops);
  complete_[rank] = step + 1;
}

std::vector<std::vector<std::vector<OpTimes>>> Timeline::times() {
  const std::uint32_t whole = complete_.empty() ? 0 : *std::min_element(complete_.begin(), complete_.end());
  for (std::uint32_t r = 0; r < times_.size(); ++r) {
    times_[r].resize(whole);
    clocks_[r].lane_end.resize(matching_.tables[matching_.ranks[r].tables].lanes);
    if (whole > 0) enter_step(r, 0);
  }
  for (const Entry& entry : log_)
    if (entry.step < whole) place(entry);
  for (std::uint32_t r = 0; r < times_.size() && whole > 0; ++r) pass_host_waits(r, 0xffffffffu);
  return std::move(times_);
}

void Timeline::enter_step(std::uint32_t rank, std::uint32_t step) {
  RankClock& clock = clocks_[rank];
  if (step > 0) pass_host_waits(rank, 0xffffffffu);
  const Waits& waits = waits_[matching_.ranks[rank].tables];
  clock.step = step;
  clock.next_host_wait = 0;
  clock.step_begin = std::max(clock.step_begin, clock.step_end);
  std::fill(clock.lane_end.begin(), clock.lane_end.end(), clock.step_begin);
  clock.group_left = waits.group_size;
  std::vector<OpTimes>& times = times_[rank][step];
  for (const Measured& m : measured_[rank][step]) {  // the host issues in order
    clock.issue = std::max(clock.issue, m.issue);
    times.push_back({clock.issue, 0, 0, m.end});
  }
}

// A HostWait returns after its target has ended; what is issued behind it comes later still.
void Timeline::pass_host_waits(std::uint32_t rank, std::uint32_t op) {
  RankClock& clock = clocks_[rank];
  const SimRank& sim = matching_.ranks[rank];
  const Waits& waits = waits_[sim.tables];
  std::vector<OpTimes>& times = times_[rank][clock.step];
  while (clock.next_host_wait < waits.host_waits.size() && waits.host_waits[clock.next_host_wait] < op) {
    const std::uint32_t wait = waits.host_waits[clock.next_host_wait++];
    const std::uint32_t target = matching_.tables[sim.tables].nodes[wait].sequence;
    OpTimes& t = times[wait];
    t.ready = t.start = std::max(clock.step_begin, wait == 0 ? t.issue : times[wait - 1].issue);
    t.end = t.issue = std::max({t.issue, t.start, times[target].end});
    clock.step_end = std::max(clock.step_end, t.end);
    for (std::uint32_t k = wait + 1; k < times.size() && times[k].issue < t.end; ++k) times[k].issue = t.end;
    clock.issue = std::max(clock.issue, t.end);
  }
}

std::int64_t Timeline::ready_of(std::uint32_t rank, std::uint32_t op) {
  const RankClock& clock = clocks_[rank];
  const SimRank& sim = matching_.ranks[rank];
  const Waits& waits = waits_[sim.tables];
  const std::vector<OpTimes>& times = times_[rank][clock.step];
  const std::uint32_t first = waits.group_first[op];
  std::int64_t ready = std::max(times[op].issue, clock.lane_end[matching_.tables[sim.tables].nodes[op].lane]);
  for (std::uint32_t k = first; k < first + waits.group_size[first]; ++k)
    for (const std::uint32_t event : waits.before[k]) ready = std::max(ready, times[event].end);
  return ready;
}

void Timeline::place(const Entry& entry) {
  std::int64_t start = 0, end = INT64_MAX;
  for (const auto& [rank, op] : entry.members) {
    if (clocks_[rank].step != entry.step) enter_step(rank, entry.step);
    pass_host_waits(rank, op);
    OpTimes& t = times_[rank][entry.step][op];
    t.ready = ready_of(rank, op);
    const Measured& m = measured_[rank][entry.step][op];
    start = std::max(start, t.ready);
    start = std::max(start, m.reached);
    end = std::min(end, m.end);
  }
  end = std::max(end, start);
  for (const auto& [rank, op] : entry.members) {
    OpTimes& t = times_[rank][entry.step][op];
    t.start = start, t.end = end;
    finish(rank, op);
  }
}

// The members of a group end together.
void Timeline::finish(std::uint32_t rank, std::uint32_t op) {
  RankClock& clock = clocks_[rank];
  const SimRank& sim = matching_.ranks[rank];
  const Waits& waits = waits_[sim.tables];
  const std::uint32_t first = waits.group_first[op];
  if (--clock.group_left[first] > 0) return;
  std::vector<OpTimes>& times = times_[rank][clock.step];
  std::int64_t end = 0;
  for (std::uint32_t k = first; k < first + waits.group_size[first]; ++k) end = std::max(end, times[k].end);
  for (std::uint32_t k = first; k < first + waits.group_size[first]; ++k) times[k].end = end;
  std::int64_t& lane = clock.lane_end[matching_.tables[sim.tables].nodes[op].lane];
  lane = std::max(lane, end);
  clock.step_end = std::max(clock.step_end, end);
}

}  // namespace steptwin
