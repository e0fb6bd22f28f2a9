// Gradients and optimizer states that begin with their first use (run.lazy_state): the same bits, and the predicted memory of the first
// step and of those behind it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

class Lazy : public testing::TestWithParam<ExecutionCase> {};

ExecutionCase lazy(ExecutionCase c) {
  c.overrides.push_back({"run.lazy_state", "true"});
  return c;
}

TEST_P(Lazy, has_the_bits_of_state_that_is_there_from_the_start) {
  for (const std::uint32_t steps : {1u, 3u}) {
    const Rehearsal eager = prepared(GetParam(), steps), prediction = prepared(lazy(GetParam()), steps);
    for (const ExecutionMode mode : {ExecutionMode::Interp, ExecutionMode::Threads}) {
      const ExecutionResult run = backend().run(prediction.schedule, execute_options(steps, mode));
      expect_same_bits(backend().run(eager.schedule, execute_options(steps)), run);
      expect_as_predicted(prediction, run, steps);
    }
  }
}

ExecutionCase with(const char* zero, int pp, int dp, const char* compute, std::vector<Override> more = {}) {
  ExecutionCase c{"gpt", true, "1f1b", "full", pp, dp, 3, compute};
  c.overrides = std::move(more);
  c.overrides.push_back({"zero", zero});
  return c;
}

INSTANTIATE_TEST_SUITE_P(levels, Lazy,
                         testing::Values(with(R"({"level": 0})", 2, 2, "fp32"), with(R"({"level": 0})", 1, 1, "bf16"),
                                         with(R"({"level": 1})", 1, 3, "bf16"), with(R"({"level": 2})", 1, 2, "fp32"),
                                         with(R"({"level": 3})", 2, 2, "bf16"), with(R"({"level": 3})", 1, 3, "fp32", {{"optimizer.clip", "1.0"}}),
                                         with(R"({"level": 3})", 1, 2, "bf16", {{"optimizer.offload", "true"}}),
                                         with(R"({"level": 3, "form": "deepspeed", "param_persistence_threshold": 1000})", 1, 3, "fp32")),
                         [](const auto& c) { return fmt::format("case{}_{}", c.index, c.param.name()); });

}  // namespace
}  // namespace steptwin::test
