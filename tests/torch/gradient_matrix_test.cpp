// gpipe and 1f1b x recompute none and full x pp 1, 2, 4 x dp 1, 2 x micro-batches 1, 4, 7 x GPT and Llama, tied and untied: all 288 cases
// of issue 3, each executed for two training steps. Then what the matrix leaves at its default, and more than two replicas, where the order
// of a sum shows in its bits.
#include <gtest/gtest.h>

#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 2;  // the second sees every parameter that the first has updated

class GradientMatrix : public testing::TestWithParam<ExecutionCase> {};

// Loss within 1e-6 and every gradient by the norm rule; memory to the byte; every op in order and matched.
TEST_P(GradientMatrix, gives_the_plain_model_s_gradients_in_the_predicted_order_and_memory) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_plain_results(prediction, run, plain_run(GetParam(), kSteps));
  EXPECT_EQ(run.losses.size(), kSteps);
  expect_as_predicted(prediction, run, kSteps);
}

TEST_P(GradientMatrix, gives_the_same_bits_in_both_modes_and_when_repeated) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult first = backend().run(prediction.schedule, execute_options(kSteps));
  expect_same_bits(first, backend().run(prediction.schedule, execute_options(kSteps)));
  const ExecutionResult threads = backend().run(prediction.schedule, execute_options(kSteps, ExecutionMode::Threads));
  expect_same_bits(first, threads);
  expect_as_predicted(prediction, threads, kSteps);
}

std::string case_name(const testing::TestParamInfo<ExecutionCase>& info) { return info.param.name(); }
INSTANTIATE_TEST_SUITE_P(gpt_tied, GradientMatrix, testing::ValuesIn(all_cases("gpt", true)), case_name);
INSTANTIATE_TEST_SUITE_P(gpt_untied, GradientMatrix, testing::ValuesIn(all_cases("gpt", false)), case_name);
INSTANTIATE_TEST_SUITE_P(llama_tied, GradientMatrix, testing::ValuesIn(all_cases("llama", true)), case_name);
INSTANTIATE_TEST_SUITE_P(llama_untied, GradientMatrix, testing::ValuesIn(all_cases("llama", false)), case_name);
INSTANTIATE_TEST_SUITE_P(beyond, GradientMatrix, testing::ValuesIn(std::vector<ExecutionCase>{
    {"gpt", true, "1f1b", "none", 4, 3, 4},
    {"llama", false, "1f1b", "full", 1, 4, 1},
    {"gpt", true, "1f1b", "none", 2, 4, 4, "fp32", "adam", {{"data_parallel.bucket_mib", "0.05"}}},
    {"llama", true, "gpipe", "none", 2, 3, 4, "fp32", "adam", {{"data_parallel.reduce", "end"}}},
    {"gpt", false, "1f1b", "full", 3, 2, 4},  // stages of 2, 1 and 1 layers
    {"gpt", true, "1f1b", "none", 2, 2, 4, "fp32", "adam", {{"schedule.p2p", "grouped"}}},
    {"llama", true, "1f1b", "full", 4, 1, 7, "fp32", "adam", {{"schedule.p2p", "grouped"}}},
    {"llama", false, "gpipe", "full", 4, 1, 4, "fp32", "adam", {{"schedule.p2p", "one_lane"}}},
    {"gpt", false, "1f1b", "none", 4, 1, 7, "fp32", "adam", {{"schedule.p2p", "compute"}}},
    {"llama", true, "1f1b", "full", 3, 1, 4, "fp32", "adam", {{"schedule.p2p", "compute_recv"}}},
    {"gpt", true, "1f1b", "none", 4, 1, 4, "fp32", "adam", {{"schedule.metadata", "true"}}},
    {"gpt", true, "gpipe", "none", 2, 2, 4, "fp32", "adam", {{"schedule.backward", "descending"}}},
    {"gpt", true, "1f1b", "none", 2, 2, 4, "fp32", "adam", {{"model.flash_attention", "false"}}},
    {"llama", true, "1f1b", "none", 2, 2, 4, "fp32", "none", {}},
    {"gpt", true, "1f1b", "none", 2, 2, 4, "fp32", "adam", {{"machine.host.run_ahead_micro_batches", "1"}}},  // HostWaits
}), case_name);

}  // namespace
}  // namespace steptwin::test
