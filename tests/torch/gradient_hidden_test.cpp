// Hidden states returned and inspected: the figures of every layer's input are those of the plain model, and nothing else changes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "exec/gradient_check.h"
#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

ExecutionCase inspected(const char* recompute, const char* zero, int pp, int dp, int micro_batches, const char* dropout = "0") {
  ExecutionCase c{"gpt", true, "1f1b", recompute, pp, dp, micro_batches};
  c.overrides = {{"zero", zero}, {"model.dropout", dropout}, {"recompute.hidden_states", "true"}};
  return c;
}

class Hidden : public testing::TestWithParam<ExecutionCase> {};
INSTANTIATE_TEST_SUITE_P(cases, Hidden,
                         testing::Values(inspected("none", R"({"level": 0})", 1, 1, 1), inspected("full", R"({"level": 0})", 2, 2, 3),
                                         inspected("none", R"({"level": 0})", 4, 1, 4), inspected("full", R"({"level": 3})", 1, 3, 2),
                                         inspected("full", R"({"level": 3, "reshard": false})", 2, 2, 3, "0.2")),
                         [](const auto& c) { return fmt::format("case{}_{}", c.index, c.param.name()); });

TEST_P(Hidden, figures_equal_the_plain_model_s) {
  const Rehearsal prediction = prepared(GetParam(), 2);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(2));
  const ExecutionResult plain = backend().run_plain(prediction.schedule, execute_options(2));
  ASSERT_EQ(run.hidden.size(), 4u);
  for (const auto& [name, figures] : run.hidden)
    EXPECT_EQ(figures.size(), 4u * static_cast<std::size_t>(GetParam().dp * GetParam().micro_batches)) << name;
  expect_plain_results(prediction, run, plain);
  expect_as_predicted(prediction, run, 2);
}

TEST_P(Hidden, inspection_changes_no_bit_of_the_training) {
  ExecutionCase without = GetParam();
  without.overrides.pop_back();
  const ExecutionResult plain = backend().run(prepared(without, 2).schedule, execute_options(2));
  expect_same_bits(plain, backend().run(prepared(GetParam(), 2).schedule, execute_options(2)));
  EXPECT_TRUE(plain.hidden.empty());
}

// What is copied is what is inspected: two layers in each other's places are found out.
TEST(HiddenStack, layers_in_the_wrong_places_fail_the_check) {
  Rehearsal prediction = prepared(inspected("none", R"({"level": 0})", 1, 1, 1), 1);
  Schedule& s = prediction.schedule;
  std::vector<Access*> pieces;
  for (Access& access : s.accesses)
    if (access.part.kind == Part::Kind::Piece && access.mode == AccessMode::Write) pieces.push_back(&access);
  ASSERT_EQ(pieces.size(), 4u);
  std::swap(pieces[1]->part, pieces[2]->part);
  const ExecutionResult run = backend().run(s, execute_options(1));
  const GradientCheck check = check_against_plain(s, run, backend().run_plain(s, execute_options(1)));
  EXPECT_FALSE(check.holds);
  EXPECT_NE(check.worst.find(".input"), std::string::npos) << check.worst;
}

}  // namespace
}  // namespace steptwin::test
