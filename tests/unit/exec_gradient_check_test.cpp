// The verdict on gradients and losses: what passes, what is named, what never passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "exec/gradient_check.h"

namespace steptwin {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Norms 5, 12 and 0: all gradients together 13, so the floor of an allowance is 1e-5 * 1e-3 * 13 = 1.3e-7.
ExecutionResult plain() {
  ExecutionResult result;
  result.losses = {4.0, 2.0};
  result.gradients = {{"a", {3, 4}}, {"b", {0, 12}}, {"zero", {0, 0}}};
  return result;
}
GradientCheck checked(const std::function<void(ExecutionResult&)>& change) {
  ExecutionResult run = plain();
  change(run);
  return check_against_plain(Schedule{}, run, plain());
}

TEST(GradientCheck, equal_runs_hold) {
  const GradientCheck check = checked([](ExecutionResult&) {});
  EXPECT_TRUE(check.holds);
  EXPECT_EQ(check.problem, "");
  EXPECT_EQ(check.tensors, 3u);
  EXPECT_EQ(check.worst_use, 0);
  EXPECT_EQ(check.loss_difference, 0);
}

// 1e-5 of the tensor's own norm 12 = 1.2e-4; one fp32 unit at 12 is 9.5e-7.
TEST(GradientCheck, a_tensor_may_differ_by_1e_5_of_its_norm) {
  const GradientCheck within = checked([](ExecutionResult& run) { run.gradients["b"][1] = 12 + 1.1e-4F; });
  EXPECT_TRUE(within.holds) << within.problem;
  EXPECT_EQ(within.worst, "b");
  EXPECT_NEAR(within.worst_use, 1.1 / 1.2, 0.01);
  const GradientCheck beyond = checked([](ExecutionResult& run) { run.gradients["b"][1] = 12 + 1.3e-4F; });
  EXPECT_FALSE(beyond.holds);
  EXPECT_EQ(beyond.worst, "b");
  EXPECT_THAT(beyond.problem, HasSubstr("b differs from the plain model"));
}

TEST(GradientCheck, the_worst_tensor_is_named_whatever_its_place) {
  for (const std::string name : {"a", "b", "zero"}) {
    const GradientCheck check = checked([&](ExecutionResult& run) {
      for (auto& [other, values] : run.gradients) values[0] += 1e-8F;
      run.gradients[name][1] += 0.5F;
    });
    EXPECT_FALSE(check.holds);
    EXPECT_EQ(check.worst, name);
    EXPECT_THAT(check.problem, HasSubstr(name + " differs"));
  }
}

// Zero in theory is noise in practice: the floor 1e-3 * norm of all counts instead of the tensor's own norm.
TEST(GradientCheck, a_gradient_that_is_zero_in_theory_passes_below_the_floor_only) {
  EXPECT_TRUE(checked([](ExecutionResult& run) { run.gradients["zero"][0] = 1.2e-7F; }).holds);
  EXPECT_FALSE(checked([](ExecutionResult& run) { run.gradients["zero"][0] = 1.4e-7F; }).holds);
}

TEST(GradientCheck, gradients_that_are_all_zero_are_equal) {
  ExecutionResult zero;
  zero.losses = {0};
  zero.gradients = {{"a", {0, 0}}};
  const GradientCheck check = check_against_plain(Schedule{}, zero, zero);
  EXPECT_TRUE(check.holds) << check.problem;
  ExecutionResult other = zero;
  other.gradients["a"][0] = 1e-20F;
  EXPECT_FALSE(check_against_plain(Schedule{}, other, zero).holds);
}

TEST(GradientCheck, nan_never_passes) {
  const GradientCheck gradient = checked([](ExecutionResult& run) { run.gradients["a"][0] = kNan; });
  EXPECT_FALSE(gradient.holds);
  EXPECT_EQ(gradient.worst, "a");
  const GradientCheck loss = checked([](ExecutionResult& run) { run.losses[0] = kNan; });
  EXPECT_FALSE(loss.holds);
  EXPECT_EQ(loss.worst, "loss of step 1");
  EXPECT_TRUE(std::isnan(loss.loss_difference)) << "later steps hide it";
  // Not even a NaN that both have.
  ExecutionResult both = plain();
  both.gradients["a"][0] = kNan;
  EXPECT_FALSE(check_against_plain(Schedule{}, both, both).holds);
}

TEST(GradientCheck, infinity_never_passes) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(checked([&](ExecutionResult& run) { run.gradients["b"][0] = infinity; }).worst, "b");
  ExecutionResult both = plain();
  both.gradients["b"][0] = infinity;
  EXPECT_FALSE(check_against_plain(Schedule{}, both, both).holds);
}

TEST(GradientCheck, a_loss_may_differ_by_1e_6_relative) {
  EXPECT_TRUE(checked([](ExecutionResult& run) { run.losses[1] = 2 * (1 + 0.9e-6); }).holds);
  const GradientCheck check = checked([](ExecutionResult& run) { run.losses[1] = 2 * (1 + 1.1e-6); });
  EXPECT_FALSE(check.holds);
  EXPECT_THAT(check.problem, HasSubstr("loss of step 2"));
  EXPECT_NEAR(check.loss_difference, 1.1e-6, 1e-9);
}

TEST(GradientCheck, what_one_side_lacks_is_named) {
  EXPECT_THAT(checked([](ExecutionResult& run) { run.gradients.erase("b"); }).problem, HasSubstr("no rank holds a gradient of b"));
  EXPECT_THAT(checked([](ExecutionResult& run) { run.gradients["c"] = {1}; }).problem, HasSubstr("no gradient named c"));
  EXPECT_EQ(checked([](ExecutionResult& run) { run.gradients["b"] = {0}; }).worst, "b");
  EXPECT_THAT(checked([](ExecutionResult& run) { run.losses.pop_back(); }).problem, HasSubstr("1 losses against 2"));
  ExecutionResult bare;
  bare.losses = {1};
  EXPECT_FALSE(check_against_plain(Schedule{}, bare, bare).holds);
}

TEST(GradientCheck, a_tied_copy_is_compared_with_the_embedding) {
  Schedule tied;
  tied.communicators.emplace_back().name = "pp.tied";
  ExecutionResult run, reference;
  run.losses = reference.losses = {1};
  reference.gradients = {{"embed.token.weight", {3, 4}}};
  run.gradients = {{"embed.token.weight", {3, 4}}, {"head.weight", {3, 4}}};
  EXPECT_TRUE(check_against_plain(tied, run, reference).holds);
  run.gradients["head.weight"][0] = 2;
  EXPECT_EQ(check_against_plain(tied, run, reference).worst, "head.weight");
  EXPECT_THAT(check_against_plain(Schedule{}, run, reference).problem, HasSubstr("no gradient named head.weight"));
}

// The plain model in 16 bits is 0.1 from fp32: 0.2 is allowed, plus the fp32 bound.
TEST(GradientCheck16Bit, may_be_twice_as_far_from_fp32_as_the_plain_model_in_its_type) {
  const ExecutionResult reference = plain();
  ExecutionResult narrow = plain(), run = plain();
  narrow.gradients["a"][0] += 0.1F;
  run.gradients["a"][0] -= 0.199F;
  EXPECT_TRUE(check_against_plain_16bit(Schedule{}, run, narrow, reference).holds);
  run.gradients["a"][0] = 3 - 0.201F;
  const GradientCheck check = check_against_plain_16bit(Schedule{}, run, narrow, reference);
  EXPECT_FALSE(check.holds);
  EXPECT_EQ(check.worst, "a");
}

TEST(GradientCheck16Bit, losses_are_within_1_percent_of_fp32) {
  const ExecutionResult reference = plain();
  ExecutionResult narrow = plain(), run = plain();
  run.losses[0] = 4 * 1.009;
  EXPECT_TRUE(check_against_plain_16bit(Schedule{}, run, narrow, reference).holds);
  run.losses[0] = narrow.losses[0] = 4 * 1.011;
  EXPECT_EQ(check_against_plain_16bit(Schedule{}, run, narrow, reference).worst, "loss of step 1");
}

}  // namespace
}  // namespace steptwin
