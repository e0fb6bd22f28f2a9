// Gradients summed over replicas in another type than they are kept in.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>

#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 3;

ExecutionCase reduced(const char* zero, const char* compute, const char* gradient, const char* reduce, int pp, int dp,
                      int micro_batches = 3) {
  ExecutionCase c{"gpt", false, "1f1b", "full", pp, dp, micro_batches, compute};
  c.overrides = {{"zero", zero}, {"precision.gradient", gradient}, {"precision.reduce", reduce}};
  return c;
}

std::string case_name(const testing::TestParamInfo<ExecutionCase>& info) { return fmt::format("case{}_{}", info.index, info.param.name()); }

class ReduceType : public testing::TestWithParam<ExecutionCase> {};

// The bf16 rule: as close to fp32 as the plain model in bf16.
TEST_P(ReduceType, is_as_close_to_fp32_as_the_plain_model_in_bf16) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_close_to_fp32(prediction, run, GetParam(), kSteps);
  expect_as_predicted(prediction, run, kSteps);
  expect_same_bits(run, backend().run(prediction.schedule, execute_options(kSteps, ExecutionMode::Threads)));
}

INSTANTIATE_TEST_SUITE_P(
    bf16, ReduceType,
    testing::Values(reduced(R"({"level": 0})", "bf16", "fp32", "bf16", 2, 2), reduced(R"({"level": 0})", "bf16", "bf16", "fp32", 1, 3),
                    reduced(R"({"level": 1})", "bf16", "fp32", "bf16", 1, 2), reduced(R"({"level": 2})", "bf16", "bf16", "fp32", 2, 2),
                    reduced(R"({"level": 2, "ends": "whole"})", "bf16", "fp32", "bf16", 1, 2),
                    reduced(R"({"level": 3})", "bf16", "fp32", "bf16", 1, 4), reduced(R"({"level": 3})", "bf16", "bf16", "fp32", 1, 3),
                    reduced(R"({"level": 3, "form": "fsdp"})", "bf16", "fp32", "bf16", 1, 2),
                    reduced(R"({"level": 3, "shard_ranks": 2})", "bf16", "bf16", "fp32", 1, 4)),
    case_name);

// What is summed in bf16 is a bf16 number, and no further from the sum in fp32 than that type's rounding of parts and sum (2^-8 of their
// sizes, which a tensor's largest element bounds).
class ReducedToBf16 : public testing::TestWithParam<ExecutionCase> {};

TEST_P(ReducedToBf16, gives_sums_of_that_type_near_those_in_fp32) {
  ExecutionCase exact = GetParam();
  exact.overrides.pop_back();
  const ExecutionResult run = backend().run(prepared(GetParam(), 1).schedule, execute_options(1));
  const ExecutionResult reference = backend().run(prepared(exact, 1).schedule, execute_options(1));
  std::size_t differing = 0;
  for (const auto& [name, values] : run.gradients) {
    const std::vector<float>& wanted = reference.gradients.at(name);
    ASSERT_EQ(values.size(), wanted.size());
    double largest = 0;
    for (const float v : wanted) largest = std::max(largest, std::fabs(static_cast<double>(v)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]) & 0xffffu, 0u) << name << " " << i;
      ASSERT_NEAR(values[i], wanted[i], 3 * largest / 256) << name << " " << i;
      differing += values[i] != wanted[i] ? 1 : 0;
    }
  }
  EXPECT_GT(differing, 1000u);
}

INSTANTIATE_TEST_SUITE_P(fp32, ReducedToBf16,
                         testing::Values(reduced(R"({"level": 0})", "fp32", "fp32", "bf16", 1, 2, 1),
                                         reduced(R"({"level": 1})", "fp32", "fp32", "bf16", 1, 3, 1),
                                         reduced(R"({"level": 2})", "fp32", "fp32", "bf16", 2, 2, 1),
                                         reduced(R"({"level": 3})", "fp32", "fp32", "bf16", 1, 2, 1)),
                         case_name);

}  // namespace
}  // namespace steptwin::test
