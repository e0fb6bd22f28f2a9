// The end of a run: what the ranks have left becomes one result. Of several processes every one hands its part to process 0, which puts
// them on one time axis and gives the members of a transfer one start and one end, as schedule.h wants: the largest ready, and the earliest
// end that a member saw (each sees it only after all data has moved). Where the clocks of several hosts or devices contradict the order of
// the ops, times are moved up to it.
#pragma once

#include <chrono>

#include "exec/backend.h"
#include "exec/cpu/recorder.h"
#include "exec/cpu/training_state.h"
#include "schedule/ir/matching.h"

namespace steptwin {

struct RunEnd {
  Outcome outcome;
  std::uint64_t ops = 0;                        // instances that ran here, warm-up included
  std::chrono::steady_clock::time_point start;  // when the recorder's clock was 0
};

// Call once, when all ranks of `matching` (those of this process) have stopped; of several processes in all of them.
ExecutionResult finish_run(const Schedule& schedule, const ExecuteOptions& options, const Matching& matching, const TrainingState& training,
                           Recorder& recorder, const RunEnd& end);

}  // namespace steptwin
