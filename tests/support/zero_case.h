// Scenarios of a small model under ZeRO, for tests of its schedules: compiled, checked, named and timed. The text names ops of the load
// lane after specs/bmtrain.md: AG2 gather, Z2 zero-fill, RS2 reduce-scatter of block 2.
#pragma once

#include <string>
#include <vector>

#include "schedule/ir/schedule.h"
#include "schedule/scenario.h"
#include "traces/trace.h"

namespace steptwin::test {

inline const std::string kEveryTwo = R"("every", "every": 2)";  // as a recompute mode

// Blocks alone unless told otherwise: BM-06 and BM-07 have neither embedding nor loss.
struct ZeroCase {
  std::string zero = R"("level": 3, "ends": "whole")";
  int layers = 3, dp = 2, pp = 1, micro_batches = 1;
  std::string recompute = "full", order = "1f1b", compute = "bf16", gradient = "fp32";
  bool tied = true;
};

Schedule compiled(const ZeroCase& c, const std::vector<Override>& overrides = {});
// The errors of verify, as printed; empty = sound.
std::string problems_of(const Schedule& schedule);
// "AG2", "Z2", "RS2" for the blocks' ops on the load lane; empty for others.
std::string load_name(const Schedule& schedule, const Op& op);
// The same without one of its dependencies (an index into Schedule::deps).
Schedule without_dependency(const Schedule& schedule, std::size_t index);
// An op some of whose dependencies guard no data: the accumulation waits for the whole load lane, and so does the first optimizer op; a group
// waits for what any of its members waits for.
bool may_be_redundant(const Schedule& schedule, OpId op);
// With the durations that ops state alone.
Trace simulated(const Schedule& schedule);

}  // namespace steptwin::test
