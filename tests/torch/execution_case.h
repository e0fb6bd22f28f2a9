// The cases of issue 3's matrix and what every execution of one promises. A case goes the whole way: scenario text -> compile -> verify ->
// simulate -> execute, through the execution module that steptwin loads (exec/module.h). No LibTorch here.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "exec/backend.h"
#include "tests/support/rehearsal.h"

namespace steptwin::test {

// 4 layers, hidden 64, 24 tokens, micro-batches of 2; the text that ships with steptwin.
struct ExecutionCase {
  std::string family = "gpt";  // "gpt", "llama" (2 of 4 heads are key heads)
  bool tied = true;
  std::string order = "1f1b", recompute = "none";
  int pp = 1, dp = 1, micro_batches = 1;
  std::string compute = "fp32", optimizer = "adam";
  // For what the matrix leaves at its default; they change neither the batch nor the order of samples. Those of model and optimizer hold for
  // the plain model too.
  std::vector<Override> overrides = {};
  std::string name() const;  // "1f1b_full_pp4_dp2_m7": what varies within one family and tying; letters, digits and _
};
void PrintTo(const ExecutionCase& c, std::ostream* out);  // for gtest
std::string scenario_text(const ExecutionCase& c);
// Every order x recompute x pp x dp x micro-batches of the issue for one model.
std::vector<ExecutionCase> all_cases(const std::string& family, bool tied);

// Compiled, free of problems (else std::runtime_error), and simulated: one repetition if one step is executed, else two, as `execute`
// does.
Rehearsal prepared(const ExecutionCase& c, std::uint32_t steps);

Backend& backend();  // loaded once a process
ExecuteOptions execute_options(std::uint32_t steps, ExecutionMode mode = ExecutionMode::Interp);
// Of the plain model on the same batches: from a schedule of one stage, gpipe, without recompute, whatever those of `c` are; where every
// rank of a pipeline has a batch of its own (form bmtrain), on ranks that are all data-parallel. Kept per
// model, batch and options, for the life of the process.
const ExecutionResult& plain_run(const ExecutionCase& c, std::uint32_t steps, std::uint32_t warm_up = 0);

// The promises, each a set of gtest expectations.
// Every lane, dependency, FIFO, rendezvous and repetition in order: measured trace and prediction.
void expect_order(const Rehearsal& prediction, const ExecutionResult& run, std::uint32_t steps);
// Every measured op of every step has a predicted one and the other way round, and none is missing on both sides.
void expect_every_op_matched(const Rehearsal& prediction, const ExecutionResult& run, std::uint32_t steps);
// The allocator's curve is the predicted one at every op of every rank and space; so are its peaks, with op and categories.
void expect_predicted_memory(const Rehearsal& prediction, const ExecutionResult& run);
// Data-parallel replicas and both copies of a tied table hold the same bits.
void expect_equal_copies(const Rehearsal& prediction, const ExecutionResult& run);
// All four.
void expect_as_predicted(const Rehearsal& prediction, const ExecutionResult& run, std::uint32_t steps);
// Gradients of all tensors, losses and hidden states are the plain model's (exec/gradient_check.h).
void expect_plain_results(const Rehearsal& prediction, const ExecutionResult& run, const ExecutionResult& plain);
// As close to the plain model in fp32 as the plain model of a case in 16 bits is; `c` is that case.
void expect_close_to_fp32(const Rehearsal& prediction, const ExecutionResult& run, const ExecutionCase& c, std::uint32_t steps);
// Losses, gradients and every rank's parameters are bitwise equal.
void expect_same_bits(const ExecutionResult& a, const ExecutionResult& b);

}  // namespace steptwin::test
