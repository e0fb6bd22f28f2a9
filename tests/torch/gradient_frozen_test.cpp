// Frozen parameters executed: the gradients of the others and the losses of some steps are the plain model's, whose autograd is told which
// parameters require one; the frozen ones keep their bits; the allocator's curve is the predicted one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "exec/gradient_check.h"
#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 4;

const std::vector<std::string> kFrozen = {
    R"(["embed*", "layers.0-1.*"])",                               // the lower half
    R"(["*.weight"])",                                             // biases (of a Llama model nothing else is left: see below)
    R"(["layers.*"])",                                             // passed through, to the embedding
    R"(["embed*", "layers.0.*", "layers.1.attn.*", "*norm*"])",    // the lowest trained segment is an MLP
    R"(["embed.token.weight", "layers.2.mlp.*", "head.norm.*"])",  // a table alone
    R"(["embed*", "layers.*"])",                                   // the head is all
    R"(["*attn.q*", "*.up.*", "head*"])",                          // some projections of every layer
};
const std::vector<std::string> kForms = {
    R"({"level": 0})",
    R"({"level": 3})",
    R"({"level": 2})",
    R"({"level": 1})",
    R"({"level": 3, "form": "block"})",
    R"({"level": 3, "reshard": false})",
    R"({"level": 3, "form": "fsdp", "ends": "whole"})",
    R"({"level": 3, "form": "deepspeed", "param_persistence_threshold": 1000})",
};
const std::vector<std::string> kRecompute = {R"({"mode": "none"})", R"({"mode": "full"})", R"({"mode": "sqrt"})",
                                             R"({"mode": "every", "every": 2})"};

std::vector<ExecutionCase> cases() {
  constexpr std::pair<int, int> kMeshes[] = {{1, 2}, {2, 1}, {2, 2}, {4, 1}};  // pp, dp
  std::vector<ExecutionCase> all;
  for (std::size_t f = 0; f < kFrozen.size(); ++f)
    for (std::size_t z = 0; z < kForms.size(); ++z) {
      auto [pp, dp] = kMeshes[(f + z) % 4];
      const std::string& recompute = kRecompute[(f + z / 2) % 4];
      if (recompute.find("sqrt") != std::string::npos) dp *= pp, pp = 1;
      const bool gpt = f == 1 || (f + z) % 3 != 0;
      ExecutionCase c{gpt ? "gpt" : "llama", (f + z) % 2 == 0, z % 2 == 0 ? "1f1b" : "gpipe", "none", pp, dp, z % 3 == 0 ? 1 : 3};
      c.overrides = {{"zero", kForms[z]}, {"recompute", recompute}, {"model.frozen", kFrozen[f]}};
      if (z == 1) c.overrides.insert(c.overrides.end(), {{"optimizer.clip", "0.5"}, {"optimizer.loss_scale", "64"}});
      if (z == 3) c.overrides.push_back({"optimizer.offload", "true"});
      if (z == 4) c.overrides.push_back({"model.dropout", "0.1"});
      if (z == 5) c.overrides.push_back({"model.flash_attention", "false"});
      all.push_back(c);
    }
  return all;
}

class FrozenGradients : public testing::TestWithParam<ExecutionCase> {};

TEST_P(FrozenGradients, of_the_others_and_losses_are_the_plain_model_s_in_the_predicted_order_and_memory) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  const ExecutionResult& plain = plain_run(GetParam(), kSteps);
  const GradientCheck check = check_against_plain(prediction.schedule, run, plain);
  EXPECT_TRUE(check.holds) << check.problem;
  ASSERT_EQ(plain.parameters.size(), 1u);
  const std::size_t frozen = plain.parameters.front().size();
  EXPECT_GT(frozen, 0u);
  EXPECT_EQ(plain.gradients.size() + frozen, parameter_names(prediction.scenario.model).size());
  EXPECT_NE(run.losses.back(), run.losses.front()) << "something is trained";
  expect_order(prediction, run, kSteps);
  expect_every_op_matched(prediction, run, kSteps);
  expect_predicted_memory(prediction, run);
  expect_equal_copies(prediction, run);
}

INSTANTIATE_TEST_SUITE_P(cover, FrozenGradients, testing::ValuesIn(cases()),
                         [](const auto& c) { return fmt::format("case{}_{}_{}", c.index, c.param.family, c.param.name()); });

// A frozen parameter that moved is found.
TEST(FrozenCheck, fails_when_a_frozen_parameter_has_changed) {
  ExecutionCase c;
  c.overrides = {{"model.frozen", R"(["embed*"])"}};
  const Rehearsal prediction = prepared(c, 1);
  ExecutionResult run = backend().run(prediction.schedule, execute_options(1));
  EXPECT_TRUE(check_against_plain(prediction.schedule, run, plain_run(c, 1)).holds);
  run.parameters.at(0).at("embed.token.weight").at(5) += 1e-3f;
  const GradientCheck check = check_against_plain(prediction.schedule, run, plain_run(c, 1));
  EXPECT_FALSE(check.holds);
  EXPECT_EQ(check.problem, "the frozen parameter embed.token.weight has changed");
}

// Weight gradients apart from input gradients, and the lowest trained segment's all at once.
TEST(FrozenSplitBackward, gives_the_plain_model_s_gradients) {
  for (const std::string& frozen : kFrozen) {
    ExecutionCase c;
    c.tied = frozen.find("head") == std::string::npos;
    c.overrides = {{"model.frozen", frozen}, {"schedule", fmt::format(R"({{"order": "csv", "csv": "{}/split.csv"}})", testing::TempDir())}};
    c.pp = 2, c.micro_batches = 2;
    std::FILE* file = std::fopen((testing::TempDir() + "/split.csv").c_str(), "w");
    std::fputs("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n", file);
    std::fclose(file);
    const Rehearsal prediction = prepared(c, 2);
    const ExecutionResult run = backend().run(prediction.schedule, execute_options(2));
    const GradientCheck check = check_against_plain(prediction.schedule, run, plain_run(c, 2));
    EXPECT_TRUE(check.holds) << frozen << check.problem;
    expect_predicted_memory(prediction, run);
  }
}

// Form bmtrain, where embedding and head stand on every rank and a layer is gathered once a batch.
TEST(FrozenBatches, of_a_pipeline_give_the_plain_model_s_gradients) {
  for (const std::string& frozen : kFrozen)
    for (const char* zero : {R"({"level": 3, "reshard": false})", R"({"level": 0})"}) {
      ExecutionCase c{"gpt", frozen.find("head") == std::string::npos, "gpipe", "full", 2, 2, 1};
      c.overrides = {{"pipeline", R"({"form": "bmtrain", "micro_batches": 4})"}, {"zero", zero}, {"model.frozen", frozen}};
      const Rehearsal prediction = prepared(c, 2);
      const ExecutionResult run = backend().run(prediction.schedule, execute_options(2));
      ExecutionCase plain = c;
      plain.pp = 1, plain.dp = 4;  // the same data on ranks that are all data-parallel
      const GradientCheck check = check_against_plain(prediction.schedule, run, plain_run(plain, 2));
      EXPECT_TRUE(check.holds) << frozen << zero << check.problem;
      expect_predicted_memory(prediction, run);
    }
}

}  // namespace
}  // namespace steptwin::test
