// Hidden states returned and inspected: the figures of every layer's input are those of the plain model, and nothing else changes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

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

// Form bmtrain of the pipeline: every rank inspects its own samples of every layer.
ExecutionCase pipelined(const char* recompute, const char* zero, int pp, int dp, int pieces, int batches, const char* dropout = "0") {
  ExecutionCase c = inspected(recompute, zero, pp, dp, batches, dropout);
  c.order = "gpipe";
  c.overrides.insert(c.overrides.begin(), {{"pipeline", fmt::format(R"({{"form": "bmtrain", "micro_batches": {}}})", pieces)},
                                           {"schedule", R"({"order": "gpipe", "p2p": "compute"})"}});
  return c;
}
INSTANTIATE_TEST_SUITE_P(pipelines, Hidden,
                         testing::Values(pipelined("full", R"({"level": 3})", 2, 1, 2, 1), pipelined("none", R"({"level": 0})", 2, 2, 4, 2),
                                         pipelined("full", R"({"level": 2})", 3, 2, 2, 3),
                                         pipelined("full", R"({"level": 3})", 4, 1, 8, 2, "0.2")),
                         [](const auto& c) { return fmt::format("case{}_{}", c.index, c.param.name()); });

std::size_t batch_ranks(const ExecutionCase& c) {
  const bool own_batches = std::any_of(c.overrides.begin(), c.overrides.end(), [](const Override& o) { return o.path == "pipeline"; });
  return static_cast<std::size_t>(own_batches ? c.dp * c.pp : c.dp);
}

TEST_P(Hidden, figures_equal_the_plain_model_s) {
  const Rehearsal prediction = prepared(GetParam(), 2);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(2));
  const ExecutionResult plain = backend().run_plain(prediction.schedule, execute_options(2));
  ASSERT_EQ(run.hidden.size(), 4u);
  for (const auto& [name, figures] : run.hidden)
    EXPECT_EQ(figures.size(), 4 * batch_ranks(GetParam()) * static_cast<std::size_t>(GetParam().micro_batches)) << name;
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

// A rank that takes another one's samples of a layer is found out.
TEST(HiddenStack, the_samples_of_another_rank_fail_the_check) {
  Rehearsal prediction = prepared(pipelined("full", R"({"level": 3})", 2, 1, 2, 1), 1);
  Schedule& s = prediction.schedule;
  const auto is_stack = [&](const Access& access) {
    const Buffer& buffer = s.programs[0].buffers[access.buffer.value];
    return buffer.layout.valid() && s.layouts[buffer.layout.value].name == "hidden.stack";
  };
  for (std::uint32_t a = 0; a < s.access_offsets[s.programs[0].op_count]; ++a) {
    Access& access = s.accesses[a];
    if (access.mode != AccessMode::Read || access.part.kind != Part::Kind::Piece || !is_stack(access)) continue;
    access.part.a ^= 1;  // the first layer's, of two ranks
    break;
  }
  const ExecutionResult run = backend().run(s, execute_options(1));
  EXPECT_FALSE(check_against_plain(s, run, backend().run_plain(s, execute_options(1))).holds);
}

}  // namespace
}  // namespace steptwin::test
