#include "exec/cpu/step_machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "exec/cpu/failure.h"
#include "exec/present.h"
#include "schedule/base/error.h"
#include "schedule/ir/text.h"

namespace steptwin {
namespace {

using Kind = Instruction::Kind;

// A host stays this many ops ahead of its lanes while other work can be done: enough to keep every lane fed, few enough to keep memory near
// the `allocated` curve and not to delay the first ops of a step.
constexpr std::uint32_t kRunAhead = 16;

bool is_work(Kind kind) {
  return kind == Kind::Launch || kind == Kind::Copy || kind == Kind::Collective || kind == Kind::Message || kind == Kind::Group ||
         kind == Kind::HostWait;
}

}  // namespace

StepMachine::StepMachine(const Schedule& schedule, const Matching& matching, const std::vector<InstructionList>& lists,
                         std::vector<RankMemory>& memories, std::uint32_t steps, Hooks hooks)
    : schedule_(schedule), matching_(matching), memories_(memories), steps_(steps), hooks_(std::move(hooks)) {
  for (const Communicator& comm : schedule.communicators) comms_.push_back(expand(schedule.mesh, comm));
  if (!hooks_.op_ended) hooks_.op_ended = [this](std::uint32_t rank, std::uint32_t op) { memories_[rank].end_op(op); };
  ranks_.resize(matching.ranks.size());
  instances_.resize(matching.instances.size());
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) set_up_rank(r, lists[matching.ranks[r].tables]);
}

void StepMachine::set_up_rank(std::uint32_t index, const InstructionList& list) {
  RankState& r = ranks_[index];
  r.list = &list;
  r.sim = &matching_.ranks[index];
  r.tables = &matching_.tables[r.sim->tables];
  r.lanes.resize(list.lanes);
  r.events.resize(list.event_op.size());
  r.channels.resize(r.tables->channels.size());
  r.times.resize(r.tables->nodes.size() - 1);
  r.done.resize(r.times.size());
  for (std::uint32_t i = 0; i < list.instructions.size(); ++i) {
    const Instruction& instruction = list.instructions[i];
    if (instruction.lane < list.lanes) r.lanes[instruction.lane].instructions.push_back(i);
  }
}

void StepMachine::start() {
  ranks_left_ = steps_ > 0 ? static_cast<std::uint32_t>(ranks_.size()) : 0;
  for (RankState& r : ranks_) {
    r.host_time = hooks_.now();
    clear_step(r);
  }
}

void StepMachine::begin_step(std::uint32_t index) {
  ranks_[index].begun = true;
  hooks_.begin_step(index, ranks_[index].step);
}

void StepMachine::clear_step(RankState& r) {
  r.begun = false;
  r.cursor = 0;
  for (LaneState& lane : r.lanes) lane.position = lane.enqueued = 0;
  std::fill(r.events.begin(), r.events.end(), EventState{});
  std::fill(r.channels.begin(), r.channels.end(), Posted{});
  std::fill(r.times.begin(), r.times.end(), OpTimes{});
  r.done.assign(r.done.size(), false);
}

// The next repetition may begin when every op of this rank has ended; other ranks may be steps behind.
void StepMachine::finish_step_if_done(std::uint32_t index) {
  RankState& r = ranks_[index];
  if (!r.begun || r.cursor < r.list->instructions.size() || r.in_flight > 0) return;
  if (std::any_of(r.lanes.begin(), r.lanes.end(), [](const LaneState& lane) { return lane.position < lane.instructions.size(); })) return;
  hooks_.step_done(index, r.step, r.times.data());
  clear_step(r);
  if (++r.step == steps_) --ranks_left_;
}

// ---- lanes ------------------------------------------------------------------------------------------------------------
void StepMachine::touch(std::uint32_t rank, std::uint32_t lane) {
  if (ranks_[rank].lanes[lane].listed) return;
  ranks_[rank].lanes[lane].listed = true;
  work_.emplace_back(rank, lane);
}

void StepMachine::settle() {
  while (!work_.empty()) {
    const auto [rank, lane] = work_.back();
    work_.pop_back();
    ranks_[rank].lanes[lane].listed = false;
    advance_lane(rank, lane);
    finish_step_if_done(rank);
  }
}

void StepMachine::advance_lane(std::uint32_t rank, std::uint32_t index) {
  RankState& r = ranks_[rank];
  LaneState& lane = r.lanes[index];
  while (lane.wait == LaneWait::Nothing && lane.position < lane.enqueued) reach(rank, index, head(r, lane));
}

void StepMachine::reach(std::uint32_t rank, std::uint32_t index, const Instruction& instruction) {
  RankState& r = ranks_[rank];
  LaneState& lane = r.lanes[index];
  const std::uint32_t op = instruction.op;
  switch (instruction.kind) {
    case Kind::Wait:
      lane.event = instruction.value;
      if (!r.events[lane.event].done) {
        lane.wait = LaneWait::Event;
        return;
      }
      if (hooks_.wait) hooks_.wait(rank, index, lane.event);
      lane.wait_time = std::max(lane.wait_time, r.events[lane.event].time);
      ++lane.position;
      return;
    case Kind::Record:
      complete_event(rank, instruction.value, lane.last_end);
      ++lane.position;
      return;
    case Kind::Launch:
    case Kind::Copy:
      r.times[op].ready = std::max({r.times[op].issue, lane.last_end, lane.wait_time});
      lane.wait = LaneWait::Runnable;
      runnable_.insert({r.times[op].ready, rank, op, index});
      return;
    case Kind::Collective:
    case Kind::Message:
    case Kind::Group: {
      const std::uint32_t count = instruction.kind == Kind::Group ? instruction.value : 1;
      lane.wait = LaneWait::Posted;
      lane.group_left = count;
      for (std::uint32_t k = op; k < op + count; ++k) r.times[k].ready = std::max({r.times[k].issue, lane.last_end, lane.wait_time});
      for (std::uint32_t k = op; k < op + count; ++k) post(rank, k);
      return;
    }
    case Kind::Alloc:
    case Kind::Mark:
    case Kind::HostWait:
    case Kind::Free: throw InternalError("an instruction of the issuing thread stands in a lane");
  }
}

void StepMachine::complete_event(std::uint32_t rank, std::uint32_t event, std::int64_t time) {
  RankState& r = ranks_[rank];
  r.events[event] = {true, time};
  for (std::uint32_t l = 0; l < r.lanes.size(); ++l) {
    if (r.lanes[l].wait != LaneWait::Event || r.lanes[l].event != event) continue;
    r.lanes[l].wait = LaneWait::Nothing;
    touch(rank, l);
  }
}

// ---- hosts ------------------------------------------------------------------------------------------------------------
bool StepMachine::issue(RunAhead bound) {
  bool any = false;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) any = issue(r, bound) || any;
  return any;
}

bool StepMachine::issue(std::uint32_t rank, RunAhead bound) {
  RankState& r = ranks_[rank];
  if (r.step == steps_ || (bound == RunAhead::Bounded && r.in_flight >= kRunAhead)) return false;
  if (!r.begun) {
    if (hooks_.may_begin && !hooks_.may_begin(rank, r.step)) return false;
    begin_step(rank);
  } else if (!issue_op(rank)) {
    return false;
  }
  finish_step_if_done(rank);
  return true;
}

// Walks the list through the next op: its allocations, its launch, and what follows it up to the next op.
bool StepMachine::issue_op(std::uint32_t rank) {
  RankState& r = ranks_[rank];
  const std::uint32_t before = r.cursor;
  bool launched = false;
  while (r.cursor < r.list->instructions.size()) {
    const Instruction& instruction = r.list->instructions[r.cursor];
    if (launched && instruction.kind != Kind::Record && instruction.kind != Kind::Free) break;
    if (!host_step_named(rank, instruction)) break;
    ++r.cursor;
    launched = launched || is_work(instruction.kind);
  }
  return r.cursor != before;
}

bool StepMachine::host_step_named(std::uint32_t rank, const Instruction& instruction) {
  try {
    return host_step(rank, instruction);
  } catch (...) {
    const RankState& r = ranks_[rank];
    const OpId op(schedule_.programs[r.tables->program.value].first_op.value + instruction.op);
    rethrow_from(fmt::format("rank {} failed while issuing op `{}` of step {}", r.sim->rank.value, print_op(schedule_, op), r.step));
  }
}

bool StepMachine::host_step(std::uint32_t rank, const Instruction& instruction) {
  RankState& r = ranks_[rank];
  switch (instruction.kind) {
    case Kind::Alloc: memories_[rank].allocate(instruction.value); return true;
    case Kind::Free: memories_[rank].drop(instruction.value); return true;
    case Kind::Mark:
      memories_[rank].begin_op(instruction.op);
      hooks_.marked(rank, r.step, instruction.op);
      return true;
    case Kind::HostWait: return host_wait(rank, instruction);
    case Kind::Launch:
    case Kind::Copy:
    case Kind::Collective:
    case Kind::Message:
    case Kind::Group:
    case Kind::Record:
    case Kind::Wait: enqueue(rank, instruction); return true;
  }
  return true;
}

bool StepMachine::host_wait(std::uint32_t rank, const Instruction& instruction) {
  RankState& r = ranks_[rank];
  if (instruction.value != Instruction::kNoEvent && !r.events[instruction.value].done) return false;
  if (hooks_.has_happened && instruction.value != Instruction::kNoEvent && !hooks_.has_happened(rank, instruction.value)) return false;
  const std::int64_t now = hooks_.now();
  r.times[instruction.op] = {now, r.host_time, r.host_time, now};
  r.done[instruction.op] = true;
  r.host_time = now;
  ++ops_done_;
  return true;
}

void StepMachine::enqueue(std::uint32_t rank, const Instruction& instruction) {
  RankState& r = ranks_[rank];
  if (is_work(instruction.kind)) {
    const std::uint32_t count = instruction.kind == Kind::Group ? instruction.value : 1;
    r.host_time = hooks_.now();
    for (std::uint32_t k = instruction.op; k < instruction.op + count; ++k) r.times[k].issue = r.host_time;
    r.in_flight += count;
  }
  ++r.lanes[instruction.lane].enqueued;
  touch(rank, instruction.lane);
}

// ---- communication ----------------------------------------------------------------------------------------------------
void StepMachine::post(std::uint32_t rank, std::uint32_t op) {
  if (ranks_[rank].tables->nodes[op].kind == OpNode::Kind::Message) {
    post_message(rank, op);
  } else {
    post_collective(rank, op);
  }
}

void StepMachine::post_message(std::uint32_t rank, std::uint32_t op) {
  RankState& r = ranks_[rank];
  const OpNode& node = r.tables->nodes[op];
  const Counterpart& peer = r.sim->counterparts[node.channel];
  ++r.channels[node.channel].count;
  if (peer.rank == kElsewhere) return transfers_.push_back({rank, op, node.lane, true});
  if (peer.rank == Counterpart::kNobody || ranks_[peer.rank].step != r.step) return;
  if (ranks_[peer.rank].channels[peer.channel].count > node.sequence) transfers_.push_back({rank, op, node.lane, true});
}

void StepMachine::post_collective(std::uint32_t rank, std::uint32_t op) {
  RankState& r = ranks_[rank];
  const OpNode& node = r.tables->nodes[op];
  const std::uint32_t instance = r.sim->counterparts[node.channel].rank;
  ++r.channels[node.channel].count;
  if (instance == Counterpart::kNobody) return;
  std::vector<Slot>& open = instances_[instance];
  auto slot = std::find_if(open.begin(), open.end(), [&](const Slot& s) { return s.step == r.step && s.sequence == node.sequence; });
  if (slot == open.end()) slot = open.insert(open.end(), Slot{r.step, node.sequence, 0, 0});
  if (++slot->arrived < matching_.instances[instance].members.size()) return;
  open.erase(slot);
  transfers_.push_back({rank, op, node.lane, true});
}

std::vector<TransferEnd> StepMachine::ends_of(const Task& task) const {
  const RankState& r = ranks_[task.rank];
  const OpNode& node = r.tables->nodes[task.op];
  const Counterpart& peer = r.sim->counterparts[node.channel];
  std::vector<TransferEnd> ends;
  if (node.kind == OpNode::Kind::Message) {
    const std::uint32_t own = r.tables->channels[node.channel].send ? 0 : 1;
    ends.push_back({task.rank, task.op, own});
    if (peer.rank != kElsewhere)
      ends.push_back({peer.rank, ranks_[peer.rank].tables->channels[peer.channel].ops[node.sequence], 1 - own});
  } else {
    const CommInstances& comm = comms_[r.tables->channels[node.channel].comm.value];
    for (const InstanceMember& member : matching_.instances[peer.rank].members)
      ends.push_back({member.rank, ranks_[member.rank].tables->channels[member.channel].ops[node.sequence],
                      comm.member_of[matching_.ranks[member.rank].rank.value]});
  }
  std::sort(ends.begin(), ends.end(), [](const TransferEnd& a, const TransferEnd& b) { return a.member < b.member; });
  return ends;
}

TransferName StepMachine::name_of(const Task& task) const {
  const RankState& r = ranks_[task.rank];
  const OpNode& node = r.tables->nodes[task.op];
  const Channel& channel = r.tables->channels[node.channel];
  const CommInstances& comm = comms_[channel.comm.value];
  TransferName name{channel.comm.value, comm.instance_of[r.sim->rank.value], 0, 0, 2, r.step, node.sequence};
  const auto size = static_cast<std::uint32_t>(comm.members[name.instance].size());
  if (channel.collective) {
    name.members = size;
    return name;
  }
  name.sender = comm.member_of[r.sim->rank.value];
  name.receiver = r.tables->peers[channel.peer_slot].second.resolve(name.sender, size);
  if (!channel.send) std::swap(name.sender, name.receiver);
  return name;
}

// ---- tasks ------------------------------------------------------------------------------------------------------------
std::optional<Task> StepMachine::next_transfer() {
  if (transfers_.empty()) return std::nullopt;
  const Task task = transfers_.front();
  transfers_.pop_front();
  return task;
}

std::vector<Task> StepMachine::next_transfers() {
  std::vector<Task> tasks;
  const auto group_of = [this](const Task& task) {
    return schedule_.ops[schedule_.programs[ranks_[task.rank].tables->program.value].first_op.value + task.op].group;
  };
  const auto joins = [&](const Task& task) {
    return ranks_.size() == 1 && task.rank == tasks[0].rank && group_of(task).valid() && group_of(task) == group_of(tasks[0]);
  };
  while (!transfers_.empty() && (tasks.empty() || joins(transfers_.front()))) {
    tasks.push_back(transfers_.front());
    transfers_.pop_front();
  }
  return tasks;
}

std::optional<Task> StepMachine::next_local() {
  if (runnable_.empty()) return std::nullopt;
  const auto [ready, rank, op, lane] = *runnable_.begin();
  runnable_.erase(runnable_.begin());
  return Task{rank, op, lane, false};
}

std::optional<Task> StepMachine::next_local(std::uint32_t rank) {
  const auto first = std::find_if(runnable_.begin(), runnable_.end(), [rank](const auto& entry) { return std::get<1>(entry) == rank; });
  if (first == runnable_.end()) return std::nullopt;
  const Task task{rank, std::get<2>(*first), std::get<3>(*first), false};
  runnable_.erase(first);
  return task;
}

void StepMachine::began(const Task& task) {
  if (!task.transfer) ranks_[task.rank].times[task.op].start = hooks_.now();
}

void StepMachine::ended(const Task& task) {
  const std::int64_t now = hooks_.now();
  if (!task.transfer) return finish_op(task.rank, task.op, now);
  const std::vector<TransferEnd> ends = ends_of(task);
  std::int64_t start = 0;
  for (const TransferEnd& end : ends) start = std::max(start, ranks_[end.rank].times[end.op].ready);
  for (const TransferEnd& end : ends) ranks_[end.rank].times[end.op].start = start;
  for (const TransferEnd& end : ends) finish_op(end.rank, end.op, now);
}

void StepMachine::finish_op(std::uint32_t rank, std::uint32_t op, std::int64_t end) {
  RankState& r = ranks_[rank];
  const OpNode& node = r.tables->nodes[op];
  LaneState& lane = r.lanes[node.lane];
  r.times[op].end = end;
  hooks_.op_ended(rank, op);
  if ((node.flags & OpNode::kGrouped) != 0) {
    if (--lane.group_left == 0) finish_group(rank, node.lane, end);
    return;
  }
  r.done[op] = true;
  --r.in_flight;
  ++ops_done_;
  lane.last_end = end;
  lane.wait = LaneWait::Nothing;
  ++lane.position;
  touch(rank, node.lane);
}

void StepMachine::finish_group(std::uint32_t rank, std::uint32_t index, std::int64_t end) {
  RankState& r = ranks_[rank];
  LaneState& lane = r.lanes[index];
  const Instruction& group = head(r, lane);
  for (std::uint32_t op = group.op; op < group.op + group.value; ++op) {
    r.times[op].end = end;
    r.done[op] = true;
  }
  r.in_flight -= group.value;
  ops_done_ += group.value;
  lane.last_end = end;
  lane.wait = LaneWait::Nothing;
  ++lane.position;
  touch(rank, index);
}

}  // namespace steptwin
