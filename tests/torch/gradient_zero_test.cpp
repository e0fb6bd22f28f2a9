// ZeRO executed: every level and form x every recompute form x micro-batches 1 and 3, over 1, 2, 3 and 4 data-parallel ranks and 2 x 2;
// model, tying and order alternate so that each meets each. What specs/bmtrain.md 14 calls result independence.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 20;

const std::vector<std::string> kZero = {
    R"({"level": 3})",
    R"({"level": 3, "form": "block"})",
    R"({"level": 3, "reshard": false})",
    R"({"level": 3, "reshard": false, "form": "block"})",
    R"({"level": 3, "ends": "whole"})",
    R"({"level": 3, "reduce": "step", "prefetch": 0})",
    R"({"level": 3, "form": "fsdp"})",
    R"({"level": 3, "form": "fsdp", "communicators": 1})",
    R"({"level": 2, "form": "fsdp", "prefetch": 2})",
    R"({"level": 2})",
    R"({"level": 2, "form": "block", "prefetch": 3})",
    R"({"level": 2, "reduce": "step", "ends": "whole"})",
    R"({"level": 1})",
    R"({"level": 1, "ends": "whole"})",
};
const std::vector<std::string> kRecompute = {R"({"mode": "none"})", R"({"mode": "full"})", R"({"mode": "every", "every": 3})",
                                             R"({"mode": "sqrt"})"};

std::vector<ExecutionCase> cases() {
  constexpr std::pair<int, int> kMeshes[] = {{1, 2}, {1, 3}, {2, 2}, {1, 4}, {1, 1}};  // pp, dp
  std::vector<ExecutionCase> all;
  for (std::size_t z = 0; z < kZero.size(); ++z)
    for (std::size_t r = 0; r < kRecompute.size(); ++r)
      for (std::size_t m = 0; m < 2; ++m) {
        auto [pp, dp] = kMeshes[(z + 2 * r + 3 * m) % 5];
        if (kRecompute[r].find("sqrt") != std::string::npos) dp *= pp, pp = 1;  // one list over all layers
        ExecutionCase c{
            (z + m) % 2 == 0 ? "gpt" : "llama", (z / 2 + r) % 2 == 0, (r + m) % 2 == 0 ? "1f1b" : "gpipe", "none", pp, dp, m == 0 ? 1 : 3};
        c.overrides = {{"zero", kZero[z]}, {"recompute", kRecompute[r]}};
        all.push_back(c);
      }
  return all;
}

class ZeroGradients : public testing::TestWithParam<ExecutionCase> {};

TEST_P(ZeroGradients, and_twenty_losses_equal_the_plain_model_s_in_the_predicted_order_and_memory) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_plain_results(prediction, run, plain_run(GetParam(), kSteps));
  EXPECT_EQ(run.losses.size(), kSteps);
  EXPECT_LT(run.losses.back(), run.losses.front());
  expect_as_predicted(prediction, run, kSteps);
}

std::string case_name(const testing::TestParamInfo<ExecutionCase>& info) {
  return fmt::format("case{}_{}_{}", info.index, info.param.family, info.param.name());
}
INSTANTIATE_TEST_SUITE_P(cover, ZeroGradients, testing::ValuesIn(cases()), case_name);

class ZeroModes : public testing::TestWithParam<ExecutionCase> {};

TEST_P(ZeroModes, give_the_same_bits_with_threads) {
  const Rehearsal prediction = prepared(GetParam(), 3);
  const ExecutionResult first = backend().run(prediction.schedule, execute_options(3));
  const ExecutionResult threads = backend().run(prediction.schedule, execute_options(3, ExecutionMode::Threads));
  expect_same_bits(first, threads);
  expect_as_predicted(prediction, threads, 3);
}

ExecutionCase hybrid(const char* zero, int dp, int micro_batches) {
  ExecutionCase c{"gpt", true, "1f1b", "full", 1, dp, micro_batches};
  c.overrides = {{"zero", zero}};
  return c;
}
const std::vector<ExecutionCase> kHybrid = {
    hybrid(R"({"level": 3, "shard_ranks": 2})", 4, 3), hybrid(R"({"level": 2, "shard_ranks": 3})", 6, 3),
    hybrid(R"({"level": 1, "shard_ranks": 2})", 4, 1), hybrid(R"({"level": 3, "shard_ranks": 1})", 2, 3)};
INSTANTIATE_TEST_SUITE_P(hybrid, ZeroGradients, testing::ValuesIn(kHybrid), case_name);
INSTANTIATE_TEST_SUITE_P(hybrid, ZeroModes, testing::ValuesIn(kHybrid), case_name);
INSTANTIATE_TEST_SUITE_P(some, ZeroModes, testing::ValuesIn([] {
                           std::vector<ExecutionCase> some;
                           for (std::size_t i = 0; i < cases().size(); i += 11) some.push_back(cases()[i]);
                           return some;
                         }()),
                         case_name);

// bf16 parameters with fp32 or bf16 gradients: as close to fp32 as the plain model in bf16.
class ZeroBf16 : public testing::TestWithParam<ExecutionCase> {};

TEST_P(ZeroBf16, is_as_close_to_fp32_as_the_plain_model_in_bf16) {
  const Rehearsal prediction = prepared(GetParam(), 2);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(2));
  expect_close_to_fp32(prediction, run, GetParam(), 2);
  expect_as_predicted(prediction, run, 2);
}

ExecutionCase in_bf16(const char* zero, const char* gradient, int dp) {
  ExecutionCase c{"gpt", false, "1f1b", "full", 1, dp, 1, "bf16"};
  c.overrides = {{"zero", zero}, {"precision.gradient", gradient}};
  return c;
}
INSTANTIATE_TEST_SUITE_P(bf16, ZeroBf16,
                         testing::Values(in_bf16(R"({"level": 3})", "fp32", 3), in_bf16(R"({"level": 2})", "fp32", 2),
                                         in_bf16(R"({"level": 1})", "fp32", 4), in_bf16(R"({"level": 3})", "bf16", 2)),
                         case_name);

}  // namespace
}  // namespace steptwin::test
