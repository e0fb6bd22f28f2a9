// Gradient clipping and loss scaling, executed: equal to the plain model that does both by itself, over pipelines, replicas and ZeRO
// levels.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "exec/checkpoint.h"
#include "exec/gradient_check.h"
#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 5;

ExecutionCase with(ExecutionCase c, const std::vector<Override>& more) {
  c.overrides.insert(c.overrides.end(), more.begin(), more.end());
  return c;
}

std::string case_name(const testing::TestParamInfo<ExecutionCase>& info) {
  return fmt::format("case{}_{}_{}", info.index, info.param.family, info.param.name());
}

// Of all parameters; a tied table's copy is not counted.
double norm(const Rehearsal& prediction, const NamedValues& gradients) {
  double squares = 0;
  for (const auto& [name, values] : gradients) {
    if (name == "head.weight" && prediction.scenario.model.tied) continue;
    for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares);
}

ExecutionCase zero(const char* options, int pp, int dp, bool tied = true, const char* family = "gpt") {
  ExecutionCase c{family, tied, "1f1b", "full", pp, dp, 3};
  c.overrides = {{"zero", options}};
  return c;
}

// A pipeline of batches: embedding and head on every rank.
ExecutionCase batches(const ExecutionCase& c) {
  return with(c, {{"schedule", R"({"order": "gpipe", "p2p": "compute"})"}, {"pipeline", R"({"form": "bmtrain", "micro_batches": 2})"}});
}

// A tensor that several ranks hold (replicas, the copy of a tied table, whole ends beside shards) counts once.
const std::vector<ExecutionCase> kMeshes = {
    zero(R"({"level": 0})", 1, 1),
    zero(R"({"level": 0})", 1, 3),
    zero(R"({"level": 0})", 2, 2),
    zero(R"({"level": 0})", 4, 1, false, "llama"),
    zero(R"({"level": 1})", 1, 2, false),
    zero(R"({"level": 1, "ends": "whole"})", 2, 2),
    zero(R"({"level": 2})", 2, 2, true, "llama"),
    zero(R"({"level": 2, "ends": "whole"})", 1, 3),
    zero(R"({"level": 3})", 1, 4),
    zero(R"({"level": 3})", 2, 2),
    zero(R"({"level": 3, "ends": "whole"})", 2, 2, false, "llama"),
    zero(R"({"level": 3, "form": "fsdp", "shard_ranks": 2})", 1, 4),
    zero(R"({"level": 2, "shard_ranks": 2, "ends": "whole"})", 2, 4),
    with(zero(R"({"level": 0})", 2, 4), {{"mesh.order", R"(["dp", "pp"])"}}),
    with(zero(R"({"level": 3, "shard_ranks": 2})", 2, 4), {{"mesh.order", R"(["dp", "pp"])"}}),
    with(zero(R"({"level": 3})", 1, 2), {{"optimizer.offload", "true"}}),
    batches(zero(R"({"level": 0})", 2, 1)),
    batches(zero(R"({"level": 0})", 2, 2, false, "llama")),
    batches(zero(R"({"level": 3})", 2, 2)),
    batches(zero(R"({"level": 2, "ends": "whole"})", 2, 2, false)),
    batches(zero(R"({"level": 3, "shard_ranks": 2})", 2, 4)),
    batches(zero(R"({"level": 1, "shard_ranks": 1})", 2, 2, false, "llama")),
    batches(zero(R"({"level": 2, "ends": "whole", "shard_ranks": 2})", 2, 4, false)),
    with(batches(zero(R"({"level": 3, "shard_ranks": 2})", 4, 4, true, "llama")), {{"mesh.order", R"(["dp", "pp"])"}}),
};

class Clip : public testing::TestWithParam<ExecutionCase> {};

TEST_P(Clip, gives_gradients_of_the_norm_asked_for_and_the_plain_model_s_losses) {
  const ExecutionCase c = with(GetParam(), {{"optimizer.clip", "0.25"}});
  const Rehearsal prediction = prepared(c, kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  EXPECT_NEAR(norm(prediction, run.gradients), 0.25, 1e-6);
  expect_plain_results(prediction, run, plain_run(c, kSteps));
  expect_as_predicted(prediction, run, kSteps);
}

TEST_P(Clip, above_the_norm_changes_no_bit) {
  const Rehearsal clipped = prepared(with(GetParam(), {{"optimizer.clip", "1000"}}), 3);
  expect_same_bits(backend().run(prepared(GetParam(), 3).schedule, execute_options(3)),
                   backend().run(clipped.schedule, execute_options(3)));
}

INSTANTIATE_TEST_SUITE_P(meshes, Clip, testing::ValuesIn(kMeshes), case_name);

TEST(ClipOfASchedule, is_seen_by_the_check) {
  const ExecutionCase c = zero(R"({"level": 3})", 1, 2);
  const Rehearsal prediction = prepared(with(c, {{"optimizer.clip", "0.25"}}), 1);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(1));
  EXPECT_FALSE(check_against_plain(prediction.schedule, run, plain_run(c, 1)).holds) << "the plain model without clip";
}

double fact(const ExecutionResult& run, std::string_view name) {
  for (const RunFact& f : run.facts)
    if (f.name == name) return f.value;
  ADD_FAILURE() << "no fact " << name;
  return 0;
}

class LossScaling : public testing::TestWithParam<ExecutionCase> {};
INSTANTIATE_TEST_SUITE_P(meshes, LossScaling, testing::ValuesIn(kMeshes), case_name);
INSTANTIATE_TEST_SUITE_P(
    bf16, LossScaling, testing::ValuesIn([] {
      std::vector<ExecutionCase> cases = {zero(R"({"level": 0})", 2, 1), zero(R"({"level": 3})", 1, 2, false, "llama")};
      for (ExecutionCase& c : cases) c.compute = "bf16";
      cases[1].overrides.push_back({"precision.gradient", "bf16"});
      return cases;
    }()),
    case_name);

// A power of two: nothing rounds differently. Three steps grow it once, from the second step on.
TEST_P(LossScaling, by_a_power_of_two_leaves_losses_and_gradients_as_they_are) {
  const ExecutionCase c = with(GetParam(), {{"optimizer.loss_scale", "1024"}, {"optimizer.loss_scale_steps", "2"}});
  const Rehearsal prediction = prepared(c, 3);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(3));
  expect_same_bits(backend().run(prepared(GetParam(), 3).schedule, execute_options(3)), run);
  EXPECT_EQ(fact(run, "loss_scale"), 2048);
  EXPECT_EQ(fact(run, "skipped_steps"), 0);
  expect_as_predicted(prediction, run, 3);
}

// A text of one letter, so that all rows pull the same way and 3e38 times a gradient overflows; 3e32 times does not.
ExecuteOptions one_letter(std::uint32_t steps) {
  ExecuteOptions options = execute_options(steps);
  options.text.assign(256, 'a');
  return options;
}

const std::vector<Override> kOverflows = {{"optimizer.loss_scale", "3e38"}, {"optimizer.loss_scale_factor", "1e6"}};

// The step is skipped and Adam's own count does not move: from then on the losses are those of a plain model that skips by itself.
TEST_P(LossScaling, overflow_skips_the_step_and_divides_the_scale) {
  const ExecutionCase c = with(GetParam(), kOverflows);
  const Rehearsal prediction = prepared(c, kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, one_letter(kSteps));
  EXPECT_EQ(fact(run, "skipped_steps"), 1);
  EXPECT_FLOAT_EQ(static_cast<float>(fact(run, "loss_scale")), 3e32f);
  const ExecutionResult plain = backend().run_plain(prediction.schedule, one_letter(kSteps));
  EXPECT_FLOAT_EQ(static_cast<float>(run.losses[1]), static_cast<float>(run.losses[0])) << "nothing was learnt";
  EXPECT_LT(run.losses[2], run.losses[1]);
  ASSERT_EQ(run.losses.size(), plain.losses.size());
  const double allowed = c.compute == "bf16" ? 1e-2 : 1e-6;  // of the two check rules
  for (std::size_t i = 0; i < run.losses.size(); ++i)
    EXPECT_NEAR(run.losses[i], plain.losses[i], allowed * plain.losses[0]) << "step " << i;
  expect_as_predicted(prediction, run, kSteps);
}

// Bit for bit: parameters, master copies and moments are those of before the step.
TEST_P(LossScaling, a_skipped_step_leaves_the_state_as_it_was) {
  const std::string folder = testing::TempDir() + "/steptwin_skipped_state_" + std::to_string(::getpid());
  ExecuteOptions options = one_letter(1);
  options.save = folder;
  const Rehearsal prediction = prepared(with(GetParam(), kOverflows), 1);
  const ExecutionResult run = backend().run(prediction.schedule, options);
  const ExecutionCase no_steps{GetParam().family, GetParam().tied, "1f1b", "none", 1, 1, 1, GetParam().compute, "none"};
  const ExecutionResult untouched = backend().run(prepared(no_steps, 1).schedule, one_letter(1));
  const CheckpointReader saved(folder);
  std::size_t moments = 0;
  for (const auto& [name, values] : run.parameters[0]) {
    if (name == "head.weight" && prediction.scenario.model.tied) continue;
    for (const char* moment : {".m", ".v"}) {
      std::vector<std::byte> bytes(values.size() * sizeof(float));
      saved.read(name + moment, 0, bytes);
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; })) << name << moment;
      ++moments;
    }
    EXPECT_EQ(values, untouched.parameters[0].at(name)) << name;
  }
  EXPECT_GT(moments, 10u);
  std::filesystem::remove_all(folder);
}

// Embedding and head on every rank of the pipeline: their copies (or shards, over stages and replicas) count once in the norm, too.
class BmtrainForm : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(levels, BmtrainForm,
                         testing::Values(R"({"level": 0})", R"({"level": 1})", R"({"level": 2, "ends": "whole"})", R"({"level": 3})",
                                         R"({"level": 3, "ends": "whole"})"));

TEST_P(BmtrainForm, clips_scales_and_offloads_like_the_plain_model) {
  for (const char* family : {"gpt", "llama"}) {
    ExecutionCase c{family, std::string(family) == "gpt", "gpipe", "full", 2, 2, 2};
    c.overrides = {{"pipeline", R"({"form": "bmtrain", "micro_batches": 2})"},
                   {"zero", GetParam()},
                   {"optimizer", R"({"clip": 0.25, "loss_scale": 1024, "loss_scale_steps": 2, "offload": true})"}};
    const Rehearsal prediction = prepared(c, kSteps);
    const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
    EXPECT_NEAR(norm(prediction, run.gradients), 0.25, 1e-6);
    expect_plain_results(prediction, run, backend().run_plain(prediction.schedule, execute_options(kSteps)));
    expect_as_predicted(prediction, run, kSteps);
  }
}

}  // namespace
}  // namespace steptwin::test
