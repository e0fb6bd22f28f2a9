// Dropout really on: the plain model draws the same masks, by (seed, step, place, sample), so every split of the batch must agree with it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "exec/gradient_check.h"
#include "schedule/ir/liveness.h"
#include "schedule/ir/verify.h"
#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 4;

ExecutionCase dropped(const char* family, const char* recompute, int pp, int dp, int micro_batches, const char* zero = R"({"level": 0})",
                      const char* flash = "true") {
  ExecutionCase c{family, std::string(family) == "gpt", "1f1b", "none", pp, dp, micro_batches};
  c.overrides = {{"recompute", recompute}, {"zero", zero}, {"model.flash_attention", flash}, {"model.dropout", "0.3"}};
  return c;
}

constexpr const char *kNone = R"({"mode": "none"})", *kFull = R"({"mode": "full"})", *kEvery = R"({"mode": "every", "every": 3})",
                     *kSqrt = R"({"mode": "sqrt"})", *kShards = R"({"level": 3})";

std::string case_name(const testing::TestParamInfo<ExecutionCase>& info) {
  return fmt::format("case{}_{}_{}", info.index, info.param.family, info.param.name());
}

class Dropout : public testing::TestWithParam<ExecutionCase> {};

TEST_P(Dropout, gives_the_plain_model_s_gradients_and_losses_with_the_same_masks) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_plain_results(prediction, run, plain_run(GetParam(), kSteps));
  expect_as_predicted(prediction, run, kSteps);
  expect_same_bits(run, backend().run(prediction.schedule, execute_options(kSteps, ExecutionMode::Threads)));
}

INSTANTIATE_TEST_SUITE_P(splits, Dropout,
                         testing::Values(dropped("gpt", kNone, 1, 1, 2), dropped("gpt", kNone, 1, 2, 1), dropped("gpt", kFull, 1, 1, 2),
                                         dropped("gpt", kFull, 1, 2, 1), dropped("gpt", kFull, 2, 2, 3), dropped("llama", kNone, 2, 1, 4),
                                         dropped("llama", kEvery, 1, 2, 3), dropped("gpt", kSqrt, 1, 2, 3),
                                         dropped("llama", kFull, 1, 3, 2, kShards), dropped("gpt", kSqrt, 1, 2, 2, kShards),
                                         dropped("gpt", kNone, 1, 2, 2, kShards),
                                         dropped("gpt", kNone, 1, 2, 1, R"({"level": 0})", "false"),
                                         dropped("gpt", kFull, 1, 1, 2, R"({"level": 0})", "false"),
                                         dropped("llama", kFull, 2, 2, 3, kShards, "false")),
                         case_name);

// Form bmtrain of the pipeline: a micro-batch of the layers holds samples of several ranks. 2 p / M samples each.
ExecutionCase pipelined(const char* family, const char* recompute, int pp, int dp, int pieces, int batches, const char* zero,
                        const char* backward = "ascending") {
  ExecutionCase c = dropped(family, recompute, pp, dp, batches, zero, pp == 2 ? "true" : "false");
  c.order = "gpipe";
  c.overrides.push_back({"pipeline", fmt::format(R"({{"form": "bmtrain", "micro_batches": {}}})", pieces)});
  c.overrides.push_back({"schedule", fmt::format(R"({{"order": "gpipe", "backward": "{}"}})", backward)});
  return c;
}
INSTANTIATE_TEST_SUITE_P(pipelines, Dropout,
                         testing::Values(pipelined("gpt", kFull, 2, 1, 1, 1, kShards), pipelined("gpt", kFull, 2, 2, 2, 3, kShards),
                                         pipelined("llama", kNone, 2, 2, 4, 2, R"({"level": 0})"),
                                         pipelined("llama", kEvery, 3, 2, 2, 1, R"({"level": 2})"),
                                         pipelined("gpt", kFull, 3, 1, 3, 3, kShards, "descending"),
                                         pipelined("gpt", kFull, 4, 2, 8, 1, R"({"level": 1})", "descending")),
                         case_name);

// One sample set, split four ways: the plain model of each is the same run.
TEST(DropoutSplits, draw_the_same_masks_for_the_same_samples) {
  const ExecutionResult& one = plain_run(dropped("gpt", kNone, 1, 1, 4), kSteps);
  for (const auto& [dp, micro_batches] : {std::pair{2, 2}, {4, 1}}) {
    const ExecutionCase c = dropped("gpt", kFull, 1, dp, micro_batches);
    const Rehearsal prediction = prepared(c, kSteps);
    const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
    expect_plain_results(prediction, run, one);
  }
  const Rehearsal prediction = prepared(pipelined("gpt", kFull, 2, 1, 4, 2, kShards), kSteps);
  expect_plain_results(prediction, backend().run(prediction.schedule, execute_options(kSteps)), one);
}

TEST(DropoutMasks, recomputed_from_the_saved_state_give_the_bits_of_a_run_that_keeps_them) {
  for (const char* flash : {"true", "false"}) {
    const ExecutionResult kept =
        backend().run(prepared(dropped("gpt", kNone, 2, 2, 3, R"({"level": 0})", flash), 3).schedule, execute_options(3));
    const ExecutionResult again =
        backend().run(prepared(dropped("gpt", kFull, 2, 2, 3, R"({"level": 0})", flash), 3).schedule, execute_options(3));
    expect_same_bits(kept, again);
  }
}

TEST(DropoutMasks, differ_from_none_and_from_step_to_step) {
  const ExecutionCase with = dropped("gpt", kNone, 1, 1, 2);
  ExecutionCase without = with;
  without.overrides.pop_back();
  const Rehearsal prediction = prepared(with, 1);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(1));
  EXPECT_FALSE(check_against_plain(prediction.schedule, run, plain_run(without, 1)).holds);
  ExecuteOptions other = execute_options(1);
  other.seed = 2;
  EXPECT_NE(backend().run(prediction.schedule, other).losses, run.losses);
}

// A recomputation that starts from another layer's state is found out: the state is what it draws from.
TEST(DropoutMasks, drawn_from_another_state_are_seen_in_the_gradients) {
  Rehearsal prediction = prepared(dropped("gpt", kFull, 1, 1, 1), 1);
  Schedule& s = prediction.schedule;
  const auto is_state = [&](const Access& access) {
    const Buffer& buffer = s.programs[0].buffers[access.buffer.value];
    return buffer.layout.valid() && s.layouts[buffer.layout.value].name == "random";
  };
  std::vector<Access*> restored;  // by R ops, in their order: the last layer's attention first
  for (std::uint32_t i = 0; i < s.ops.size(); ++i)
    for (std::uint32_t a = s.access_offsets[i]; a < s.access_offsets[i + 1]; ++a)
      if (s.ops[i].label.phase == Phase::Recompute && is_state(s.accesses[a])) restored.push_back(&s.accesses[a]);
  ASSERT_EQ(restored.size(), 8u) << "two of each layer";
  const ExecutionResult right = backend().run(s, execute_options(1));
  EXPECT_TRUE(check_against_plain(s, right, plain_run(dropped("gpt", kFull, 1, 1, 1), 1)).holds);
  restored[0]->buffer = restored[2]->buffer;
  ASSERT_TRUE(verify(s).empty());
  const ExecutionResult wrong = backend().run(s, execute_options(1));
  EXPECT_EQ(wrong.losses, right.losses) << "the forward was the same";
  EXPECT_FALSE(check_against_plain(s, wrong, plain_run(dropped("gpt", kFull, 1, 1, 1), 1)).holds);
}

// 16 bytes of host memory per half layer and micro-batch in flight; a byte per masked element in what is saved.
TEST(DropoutMemory, counts_states_and_masks) {
  ExecutionCase c = dropped("gpt", kFull, 1, 1, 3);
  c.order = "gpipe";
  const Schedule s = prepared(c, 1).schedule;
  std::int64_t states = 0;
  for (const Bytes level : allocated_curve(s, s.programs[0], Space::Pageable)) states = std::max(states, level.value);
  EXPECT_EQ(states, 16 * 2 * 4 * 3);
  const auto saved_bytes = [](const Schedule& schedule, const char* layout) {
    for (const Buffer& buffer : schedule.programs[0].buffers)
      if (buffer.layout.valid() && schedule.layouts[buffer.layout.value].name == layout) return buffer.bytes.value;
    return std::int64_t{0};
  };
  ExecutionCase without = c;
  without.overrides.pop_back();
  const Schedule none = prepared(without, 1).schedule;
  for (const char* layout : {"embed.saved", "attn.saved", "mlp.saved"})
    EXPECT_EQ(saved_bytes(s, layout) - saved_bytes(none, layout), 2 * 24 * 64) << layout;
}

}  // namespace
}  // namespace steptwin::test
