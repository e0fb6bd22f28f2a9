// Layers that share their parameters, executed: every layer's contribution is in the block's gradient.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 4;

class SharedBlock : public testing::TestWithParam<ExecutionCase> {};

TEST_P(SharedBlock, gradients_and_losses_equal_the_plain_model_s_in_the_predicted_memory) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_plain_results(prediction, run, plain_run(GetParam(), kSteps));
  expect_as_predicted(prediction, run, kSteps);
}

ExecutionCase with(const char* family, int pp, int dp, int micro_batches, std::vector<Override> more) {
  ExecutionCase c{family, true, "1f1b", "none", pp, dp, micro_batches};
  c.overrides = std::move(more);
  return c;
}
const Override kTwo{"model.layers_per_block", "2"}, kAll{"model.layers_per_block", "4"};

INSTANTIATE_TEST_SUITE_P(
    blocks, SharedBlock,
    testing::Values(with("gpt", 1, 1, 3, {kAll}), with("llama", 2, 2, 3, {kTwo}),
                    with("gpt", 1, 3, 3, {kTwo, {"zero", R"({"level": 3})"}, {"recompute.mode", "full"}}),
                    with("llama", 2, 2, 1, {kTwo, {"zero", R"({"level": 3, "reshard": false})"}}),
                    with("gpt", 1, 2, 3, {kTwo, {"zero", R"({"level": 3, "form": "block"})"}, {"recompute.mode", "sqrt"}}),
                    with("gpt", 1, 2, 3, {kAll, {"zero", R"({"level": 2})"}, {"optimizer.clip", "0.5"}, {"model.dropout", "0.1"}}),
                    with("gpt", 1, 3, 3, {kTwo, {"zero", R"({"level": 3, "form": "deepspeed", "max_reuse_distance": 0})"}, {"recompute.mode", "full"}}),
                    with("llama", 1, 2, 1, {kTwo, {"zero", R"({"level": 1})"}, {"model.frozen", "[\"layers.0.*\"]"}})),
    [](const auto& c) { return fmt::format("case{}_{}_{}", c.index, c.param.family, c.param.name()); });

}  // namespace
}  // namespace steptwin::test
