// Scenarios of a small model under ZeRO, for tests of its schedules: compiled, checked, named and timed. The text names ops of the load
// lane after specs/bmtrain.md: AG2 gather, Z2 zero-fill, RS2 reduce-scatter of block 2.
#pragma once

#include <functional>
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
// Form bmtrain of the pipeline, gpipe; the blocks alone are sharded.
struct BatchPipelineCase {
  int pp = 2, dp = 1, layers = 2, pieces = 2, batches = 1, samples = 2;  // samples of a rank's batch
  std::vector<Override> more = {};
  std::string zero = R"("level": 3, "ends": "whole")";
  std::string recompute = "full";
};
Schedule compiled_pipeline(const BatchPipelineCase& c);
std::int64_t hidden_of_the_pipeline(const BatchPipelineCase& c);  // H, in bytes

// The errors of verify, as printed; empty = sound.
std::string problems_of(const Schedule& schedule);
// "AG2", "Z2", "RS2" for the blocks' ops on the load lane; empty for others.
std::string load_name(const Schedule& schedule, const Op& op);
// Whether it is a collective or message of this communicator.
bool on(const Schedule& schedule, const Op& op, const char* comm);
// What BM-10 names of an op, by micro-batch: "F0", "FB0" (where the layer's last op stands), "S0>", "<R0", the load lane's, "BC1" (by
// root), "embed", "head'" (backward), "AGhidden", "AGgradient", "H2" (a layer's hidden state is copied), "inspect"; empty for others.
std::string name_of_op(const Schedule& schedule, const Op& op);
std::string program_text(const Schedule& schedule, std::size_t program);  // without the optimizer's
// Over the buffers of a program that exist when an op of it is issued and are not resident: the sum of what `counts` gives.
using CountOfBuffer = std::function<std::int64_t(const Buffer&)>;
std::int64_t alive(const Schedule& schedule, const Program& program, std::uint32_t op, const CountOfBuffer& counts);
bool of_block(const Schedule& schedule, const Buffer& buffer);  // parameters or gradients of a whole block
// The load lane's program of the first rank, with a bar where the backward begins.
std::string load_program(const Schedule& schedule);
// A schedule without one of its dependencies (an index into Schedule::deps).
Schedule without_dependency(const Schedule& schedule, std::size_t index);
// An op some of whose dependencies guard no data: the accumulation waits for the whole load lane, and so does the first optimizer op; a group
// waits for what any of its members waits for.
bool may_be_redundant(const Schedule& schedule, OpId op);
// With the durations that ops state alone.
Trace simulated(const Schedule& schedule);

}  // namespace steptwin::test
