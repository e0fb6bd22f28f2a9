// From what the device measured to the times of a trace. The device gives, per op, when its lane reached it and when it had ended (CUDA
// events); the host gives the issue. The rest follows from the schedule's inequalities (schedule.h), in the order in which ops were put
// into streams:
//   ready = max(issue, end of the lane's op before it, ends of the events its lane waited for, end of the rank's repetition before)
//   start = when the lane reached it, not before ready; of communication the largest ready of its members
//   end   = what was measured; of communication the earliest that any member saw (each sees it only after all data has moved); of a group
//           the end of its last member
// The two clocks are aligned once a run and may differ by microseconds: a time that contradicts an inequality is moved up to it.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/lower.h"
#include "schedule/ir/loop.h"
#include "schedule/ir/matching.h"

namespace steptwin {

class Timeline {
 public:
  struct Measured {
    std::int64_t issue = 0, reached = 0, end = 0;  // ns since the start of the run
  };

  Timeline(const Matching& matching, const std::vector<InstructionList>& lists, std::uint32_t steps);

  // In the order in which the work was put into streams. members: (rank, op) of a transfer; one for a local op.
  void enqueued(std::uint32_t step, std::vector<std::pair<std::uint32_t, std::uint32_t>> members);
  // One per op, step after step. HostWaits: issue and end of the host. Of communication `reached` means nothing and is 0.
  void measured(std::uint32_t rank, std::uint32_t step, std::vector<Measured> ops);

  // [rank][step][op]; steps that were not measured on every rank are left out. Call once, at the end.
  std::vector<std::vector<std::vector<OpTimes>>> times();

 private:
  struct Entry {
    std::uint32_t step;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> members;
  };
  // What is needed of an instruction list.
  struct Waits {
    std::vector<std::vector<std::uint32_t>> before;  // [op] ops whose events its lane waits for right before it
    std::vector<std::uint32_t> host_waits;           // ops, ascending
    std::vector<std::uint32_t> group_first;          // [op] first op of its group, or itself
    std::vector<std::uint32_t> group_size;           // [first op]
  };
  struct RankClock {
    std::vector<std::int64_t> lane_end;
    std::int64_t issue = 0, step_begin = 0, step_end = 0;
    std::uint32_t step = 0, next_host_wait = 0;
    std::vector<std::uint32_t> group_left;  // [first op]
  };
  static Waits waits_of(const ProgramTables& tables, const InstructionList& list);
  void enter_step(std::uint32_t rank, std::uint32_t step);
  void pass_host_waits(std::uint32_t rank, std::uint32_t op);
  std::int64_t ready_of(std::uint32_t rank, std::uint32_t op);
  void place(const Entry& entry);
  void finish(std::uint32_t rank, std::uint32_t op);

  const Matching& matching_;
  std::vector<Waits> waits_;  // [tables]
  std::vector<Entry> log_;
  std::vector<std::vector<std::vector<Measured>>> measured_;  // [rank][step][op]
  std::vector<std::uint32_t> complete_;                       // [rank] steps measured
  std::vector<std::vector<std::vector<OpTimes>>> times_;
  std::vector<RankClock> clocks_;
};

}  // namespace steptwin
