// ZeRO-3 in the form deepspeed, executed: its options x recompute x accumulation over 1, 2, 3 and 4 ranks and 2 x 2; model, tying and order
// alternate. Gradients and losses are the plain model's, order and memory the predicted ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "exec/gradient_check.h"
#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 5;

// Of 4 layers of 64: biases and norms have at most 256 elements, matrices at least 4096.
const std::vector<std::string> kOptions = {
    R"("param_persistence_threshold": 1000)",
    R"("param_persistence_threshold": 0, "prefetch_bucket_size": 0, "max_reuse_distance": 0, "reduce_bucket_size": 1)",
    R"("param_persistence_threshold": 100, "prefetch_bucket_size": 20000, "max_reuse_distance": 0, "reduce_bucket_size": 20000)",
    R"("param_persistence_threshold": 1000, "max_live_parameters": 30000, "max_reuse_distance": 40000, "overlap_comm": false)",
    R"("param_persistence_threshold": 0, "max_reuse_distance": 0, "communicators": 2, "reduce_bucket_size": 10000)",
    R"("reduce_bucket_size": 50000)",  // everything is persistent
};
const std::vector<std::string> kRecompute = {R"({"mode": "none"})", R"({"mode": "full"})", R"({"mode": "every", "every": 3})",
                                             R"({"mode": "sqrt"})"};

std::string zero(const std::string& options) { return R"({"level": 3, "form": "deepspeed", )" + options + "}"; }

std::vector<ExecutionCase> cases() {
  constexpr std::pair<int, int> kMeshes[] = {{1, 2}, {1, 3}, {2, 2}, {1, 4}, {1, 1}};  // pp, dp
  std::vector<ExecutionCase> all;
  for (std::size_t z = 0; z < kOptions.size(); ++z)
    for (std::size_t r = 0; r < kRecompute.size(); ++r)
      for (std::size_t m = 0; m < 2; ++m) {
        auto [pp, dp] = kMeshes[(z + 2 * r + 3 * m) % 5];
        if (kRecompute[r].find("sqrt") != std::string::npos) dp *= pp, pp = 1;
        ExecutionCase c{
            (z + m) % 2 == 0 ? "gpt" : "llama", (z / 2 + r) % 2 == 0, (r + m) % 2 == 0 ? "1f1b" : "gpipe", "none", pp, dp, m == 0 ? 1 : 3};
        c.overrides = {{"zero", zero(kOptions[z])}, {"recompute", kRecompute[r]}};
        all.push_back(c);
      }
  return all;
}

ExecutionCase with(ExecutionCase c, std::vector<Override> more) {
  c.overrides.insert(c.overrides.end(), more.begin(), more.end());
  return c;
}

// Clipping and loss scale, offload, dropout.
std::vector<ExecutionCase> beside() {
  ExecutionCase c{"gpt", true, "1f1b", "full", 1, 3, 2};
  c.overrides = {{"zero", zero(kOptions[0])}};
  ExecutionCase d{"llama", true, "gpipe", "full", 2, 2, 3};
  d.overrides = {{"zero", zero(kOptions[2])}};
  return {with(c, {{"optimizer.clip", "0.5"}, {"optimizer.loss_scale", "1024"}}),
          with(d, {{"optimizer.clip", "0.5"}, {"optimizer.overflow_check", "true"}}), with(c, {{"optimizer.offload", "true"}}),
          with(d, {{"optimizer.offload", "true"}}), with(c, {{"model.dropout", "0.3"}})};
}

class DeepspeedGradients : public testing::TestWithParam<ExecutionCase> {};

TEST_P(DeepspeedGradients, and_losses_equal_the_plain_model_s_in_the_predicted_order_and_memory) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_plain_results(prediction, run, plain_run(GetParam(), kSteps));
  expect_as_predicted(prediction, run, kSteps);
}

std::string case_name(const testing::TestParamInfo<ExecutionCase>& info) {
  return fmt::format("case{}_{}_{}", info.index, info.param.family, info.param.name());
}
INSTANTIATE_TEST_SUITE_P(cover, DeepspeedGradients, testing::ValuesIn(cases()), case_name);
INSTANTIATE_TEST_SUITE_P(beside, DeepspeedGradients, testing::ValuesIn(beside()), case_name);

class DeepspeedModes : public testing::TestWithParam<ExecutionCase> {};

TEST_P(DeepspeedModes, give_the_same_bits_with_threads) {
  const Rehearsal prediction = prepared(GetParam(), 3);
  const ExecutionResult first = backend().run(prediction.schedule, execute_options(3));
  const ExecutionResult threads = backend().run(prediction.schedule, execute_options(3, ExecutionMode::Threads));
  expect_same_bits(first, threads);
  expect_predicted_memory(prediction, threads);
}
INSTANTIATE_TEST_SUITE_P(some, DeepspeedModes, testing::Values(cases()[3], cases()[10], cases()[21], cases()[28]), case_name);

// bf16 parameters: fp32 gradients reduced in bf16, and bf16 gradients.
class DeepspeedBf16 : public testing::TestWithParam<ExecutionCase> {};

TEST_P(DeepspeedBf16, is_as_close_to_fp32_as_the_plain_model_in_bf16) {
  const Rehearsal prediction = prepared(GetParam(), 2);
  ExecutionCase wide = GetParam();
  wide.compute = "fp32";
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(2));
  const GradientCheck check = check_against_plain_16bit(prediction.schedule, run, plain_run(GetParam(), 2), plain_run(wide, 2));
  EXPECT_TRUE(check.holds) << check.problem;
  expect_predicted_memory(prediction, run);
  expect_equal_copies(prediction, run);
}

ExecutionCase in_bf16(std::size_t options, int dp, std::vector<Override> precision) {
  ExecutionCase c{"gpt", false, "1f1b", "full", 1, dp, 2, "bf16"};
  c.overrides = {{"zero", zero(kOptions[options])}};
  return with(c, std::move(precision));
}
INSTANTIATE_TEST_SUITE_P(bf16, DeepspeedBf16,
                         testing::Values(in_bf16(0, 3, {}), in_bf16(2, 2, {{"precision.reduce", "bf16"}}),
                                         in_bf16(1, 3, {{"precision.gradient", "bf16"}}), in_bf16(3, 2, {{"precision.reduce", "bf16"}})),
                         case_name);

}  // namespace
}  // namespace steptwin::test
