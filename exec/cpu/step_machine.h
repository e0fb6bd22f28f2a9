// The state of a run of a schedule on the CPU: hosts walking instruction lists, lanes as FIFOs, events, rendezvous. It decides what may
// happen next, by the inequalities of schedule.h, and stamps the times; it does no work itself. Driven by one thread (interp) or by a lock
// holder among several (threads): not thread-safe.
// Ranks are those of the matching, which may be a part of the run's (exec/present.h): a transfer is then offered once all its present
// members have posted; whoever drives it must wait for the others.
//
//   ready = max(issue, end of the lane's op before it, ends of the events waited for); of a group the maximum over its members
//   start = when the work began; of communication the largest ready of its members
//   end   = when it was done, the same for all counterparts; of a group the end of its last member
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "exec/cpu/rank_memory.h"
#include "exec/lower.h"
#include "schedule/ir/loop.h"
#include "schedule/ir/matching.h"

namespace steptwin {

// Something to do now: a local op (compute, copy), or the data movement of a communication op whose (present) members are all ready.
struct Task {
  std::uint32_t rank = 0, op = 0;  // index of the rank in the matching; local op. Of a transfer: the member that came last
  std::uint32_t lane = 0;
  bool transfer = false;
};

// One member's side of a transfer.
struct TransferEnd {
  std::uint32_t rank = 0, op = 0;
  std::uint32_t member = 0;  // its number on the communicator; of a message 0: the sender, 1: the receiver
};
// Which transfer of the run it is, the same for all members.
struct TransferName {
  std::uint32_t comm = 0, instance = 0;     // of CommInstances
  std::uint32_t sender = 0, receiver = 0;   // of a message: member numbers; of a collective 0
  std::uint32_t members = 0;                // of the whole transfer
  std::uint32_t step = 0, sequence = 0;
};

class StepMachine {
 public:
  struct Hooks {
    std::function<void(std::uint32_t rank, std::uint32_t step)> begin_step;
    std::function<void(std::uint32_t rank, std::uint32_t step, const OpTimes* times)> step_done;
    std::function<void(std::uint32_t rank, std::uint32_t step, std::uint32_t op)> marked;  // the sample point of op
    std::function<std::int64_t()> now;  // ns since the start of the run
    // A backend whose lanes run by themselves (CUDA streams) sets these. There an op "ends" when it has been put into its stream, and so
    // does what waits for it; times of the device come from elsewhere.
    std::function<void(std::uint32_t rank, std::uint32_t lane, std::uint32_t event)> wait;  // put it into the lane
    std::function<bool(std::uint32_t rank, std::uint32_t event)> has_happened;              // on the device: a HostWait may return
    std::function<bool(std::uint32_t rank, std::uint32_t step)> may_begin;                  // default: always
    std::function<void(std::uint32_t rank, std::uint32_t op)> op_ended;                     // default: ends the op's uses of memory
  };

  StepMachine(const Schedule& schedule, const Matching& matching, const std::vector<InstructionList>& lists, std::vector<RankMemory>& memories,
              std::uint32_t steps, Hooks hooks);

  void start();
  // Follows waits, records and posts until nothing more happens by itself; afterwards next_* say what can be done.
  void settle();
  std::optional<Task> next_transfer();
  // The next transfer; where several processes run, with those of its group behind it: they go on together. Empty: none is due.
  std::vector<Task> next_transfers();
  std::optional<Task> next_local();                    // the one that has been ready longest
  std::optional<Task> next_local(std::uint32_t rank);  // of this rank
  enum class RunAhead : std::uint8_t { Bounded, Free };
  bool issue(RunAhead bound);                     // every host issues its next op, or begins its next repetition, if it can; false: none could
  bool issue(std::uint32_t rank, RunAhead bound);
  void began(const Task& task);                   // stamps the start of a local op
  void ended(const Task& task);
  bool finished() const { return ranks_left_ == 0; }
  bool finished(std::uint32_t rank) const { return ranks_[rank].step == steps_; }

  // The present members of a transfer in member order (message: sender, receiver).
  std::vector<TransferEnd> ends_of(const Task& task) const;
  TransferName name_of(const Task& task) const;
  std::uint32_t step(std::uint32_t rank) const { return ranks_[rank].step; }
  std::uint32_t slowest_step() const;
  std::uint64_t ops_done() const { return ops_done_; }
  // Where every rank stands: one line each, with its oldest unfinished op and what that waits for.
  std::vector<std::string> positions() const;
  // Spans of the unfinished step: ops that have ended.
  bool has_ended(std::uint32_t rank, std::uint32_t op) const { return ranks_[rank].done[op]; }
  const OpTimes* times(std::uint32_t rank) const { return ranks_[rank].times.data(); }

 private:
  enum class LaneWait : std::uint8_t { Nothing, Event, Runnable, Posted };
  struct LaneState {
    std::vector<std::uint32_t> instructions;  // of the list, those of this lane
    std::uint32_t position = 0, enqueued = 0;
    LaneWait wait = LaneWait::Nothing;
    std::uint32_t event = 0;
    std::int64_t last_end = 0, wait_time = 0;
    std::uint32_t group_left = 0;
    bool listed = false;  // in the work list
  };
  struct EventState {
    bool done = false;
    std::int64_t time = 0;
  };
  struct Posted {
    std::uint32_t count = 0;
  };
  struct RankState {
    const InstructionList* list = nullptr;
    const ProgramTables* tables = nullptr;
    const SimRank* sim = nullptr;
    std::uint32_t cursor = 0, step = 0, in_flight = 0;
    std::int64_t host_time = 0;
    std::vector<LaneState> lanes;
    std::vector<EventState> events;
    std::vector<Posted> channels;
    std::vector<OpTimes> times;
    std::vector<bool> done;
    bool begun = false;  // its repetition
  };
  struct Slot {
    std::uint32_t step = 0, sequence = 0, arrived = 0;
    std::int64_t ready = 0;
  };

  void set_up_rank(std::uint32_t index, const InstructionList& list);
  void begin_step(std::uint32_t index);
  void clear_step(RankState& r);
  void finish_step_if_done(std::uint32_t index);
  void touch(std::uint32_t rank, std::uint32_t lane);
  void advance_lane(std::uint32_t rank, std::uint32_t lane);
  void reach(std::uint32_t rank, std::uint32_t lane, const Instruction& instruction);
  bool issue_op(std::uint32_t rank);
  bool host_step(std::uint32_t rank, const Instruction& instruction);
  bool host_step_named(std::uint32_t rank, const Instruction& instruction);  // what it throws says rank and op
  bool host_wait(std::uint32_t rank, const Instruction& instruction);
  void enqueue(std::uint32_t rank, const Instruction& instruction);
  void complete_event(std::uint32_t rank, std::uint32_t event, std::int64_t time);
  void post(std::uint32_t rank, std::uint32_t op);
  void post_message(std::uint32_t rank, std::uint32_t op);
  void post_collective(std::uint32_t rank, std::uint32_t op);
  void finish_op(std::uint32_t rank, std::uint32_t op, std::int64_t end);
  void finish_group(std::uint32_t rank, std::uint32_t lane, std::int64_t end);
  const Instruction& head(const RankState& r, const LaneState& lane) const { return r.list->instructions[lane.instructions[lane.position]]; }
  std::string position(std::uint32_t rank) const;

  const Schedule& schedule_;
  const Matching& matching_;
  std::vector<CommInstances> comms_;
  std::vector<RankMemory>& memories_;
  const std::uint32_t steps_;
  Hooks hooks_;
  std::vector<RankState> ranks_;
  std::vector<std::vector<Slot>> instances_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> work_;  // lanes to look at
  std::set<std::tuple<std::int64_t, std::uint32_t, std::uint32_t, std::uint32_t>> runnable_;  // (ready, rank, op, lane)
  std::deque<Task> transfers_;
  std::uint32_t ranks_left_ = 0;
  std::uint64_t ops_done_ = 0;
};

}  // namespace steptwin
