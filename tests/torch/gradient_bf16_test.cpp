// bf16 with fp32 master copies and gradients. Nine cases per model in which every pair of options of the matrix meets: order, recompute,
// pp, dp, micro-batches.
#include <gtest/gtest.h>

#include "exec/gradient_check.h"
#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 2;

std::vector<ExecutionCase> covering(const std::string& family, bool tied) {
  std::vector<ExecutionCase> cases = {
      {family, tied, "1f1b", "full", 1, 1, 1},  {family, tied, "gpipe", "full", 1, 2, 4}, {family, tied, "gpipe", "none", 1, 1, 7},
      {family, tied, "gpipe", "none", 2, 1, 1}, {family, tied, "1f1b", "none", 2, 1, 4},  {family, tied, "1f1b", "full", 2, 2, 7},
      {family, tied, "gpipe", "none", 4, 2, 1}, {family, tied, "1f1b", "none", 4, 1, 4},  {family, tied, "gpipe", "full", 4, 1, 7},
  };
  for (ExecutionCase& c : cases) c.compute = "bf16";
  return cases;
}

class Bf16 : public testing::TestWithParam<ExecutionCase> {};

// Loss within 1 % of the fp32 plain run, each gradient at most twice as far from it as that of the bf16 plain run.
TEST_P(Bf16, is_as_close_to_fp32_as_the_plain_model_in_bf16) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  ExecutionCase wide = GetParam();
  wide.compute = "fp32";
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_close_to_fp32(prediction, run, GetParam(), kSteps);
  EXPECT_FALSE(check_against_plain(prediction.schedule, run, plain_run(wide, kSteps)).holds) << "rounding to bf16 left no trace";
  expect_as_predicted(prediction, run, kSteps);
}

TEST_P(Bf16, gives_the_same_bits_in_both_modes_and_when_repeated) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult first = backend().run(prediction.schedule, execute_options(kSteps));
  expect_same_bits(first, backend().run(prediction.schedule, execute_options(kSteps)));
  expect_same_bits(first, backend().run(prediction.schedule, execute_options(kSteps, ExecutionMode::Threads)));
}

std::string case_name(const testing::TestParamInfo<ExecutionCase>& info) { return info.param.name(); }
INSTANTIATE_TEST_SUITE_P(gpt_tied, Bf16, testing::ValuesIn(covering("gpt", true)), case_name);
INSTANTIATE_TEST_SUITE_P(gpt_untied, Bf16, testing::ValuesIn(covering("gpt", false)), case_name);
INSTANTIATE_TEST_SUITE_P(llama_tied, Bf16, testing::ValuesIn(covering("llama", true)), case_name);
INSTANTIATE_TEST_SUITE_P(llama_untied, Bf16, testing::ValuesIn(covering("llama", false)), case_name);

}  // namespace
}  // namespace steptwin::test
