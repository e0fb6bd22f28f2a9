// The optimizer on the host: the same bits as on the device, whatever ZeRO shards, in the predicted order and memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 5;

class Offload : public testing::TestWithParam<ExecutionCase> {};

ExecutionCase offloaded(ExecutionCase c) {
  c.overrides.push_back({"optimizer.offload", "true"});
  return c;
}

TEST_P(Offload, steps_like_the_optimizer_on_the_device_bit_for_bit) {
  const Rehearsal ordinary = prepared(GetParam(), kSteps), prediction = prepared(offloaded(GetParam()), kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_same_bits(backend().run(ordinary.schedule, execute_options(kSteps)), run);
  expect_as_predicted(prediction, run, kSteps);
}

TEST_P(Offload, gives_the_same_bits_with_threads) {
  const Rehearsal prediction = prepared(offloaded(GetParam()), 2);
  const ExecutionResult first = backend().run(prediction.schedule, execute_options(2));
  const ExecutionResult threads = backend().run(prediction.schedule, execute_options(2, ExecutionMode::Threads));
  expect_same_bits(first, threads);
  expect_as_predicted(prediction, threads, 2);
}

ExecutionCase with_zero(const char* zero, int pp, int dp, const char* compute, const char* gradient = "fp32") {
  ExecutionCase c{"gpt", true, "1f1b", "full", pp, dp, 3, compute};
  c.overrides = {{"zero", zero}, {"precision.gradient", gradient}};
  return c;
}

INSTANTIATE_TEST_SUITE_P(levels, Offload,
                         testing::Values(with_zero(R"({"level": 0})", 2, 2, "fp32"), with_zero(R"({"level": 0})", 1, 1, "bf16"),
                                         with_zero(R"({"level": 1})", 1, 3, "fp32"), with_zero(R"({"level": 1})", 1, 2, "bf16", "bf16"),
                                         with_zero(R"({"level": 2})", 1, 3, "bf16"),
                                         with_zero(R"({"level": 2, "ends": "whole"})", 2, 2, "fp32"),
                                         with_zero(R"({"level": 3})", 1, 3, "fp32"), with_zero(R"({"level": 3})", 2, 2, "bf16"),
                                         with_zero(R"({"level": 3, "ends": "whole"})", 1, 2, "bf16", "bf16"),
                                         with_zero(R"({"level": 3, "shard_ranks": 2, "form": "fsdp"})", 1, 4, "fp32")),
                         [](const auto& c) { return fmt::format("case{}_{}", c.index, c.param.name()); });

}  // namespace
}  // namespace steptwin::test
