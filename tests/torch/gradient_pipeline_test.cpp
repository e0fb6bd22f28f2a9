// Pipelines whose ranks all have a batch (specs/bmtrain.md 9), executed: gradients and twenty losses equal the plain model's, in the
// predicted order and memory, for pipelines of 2 to 4 stages alone and beside data parallelism, M from 1 to 8, both backward orders, 1 and
// 3 batches a step; ZeRO levels and forms, recomputation, messages, model and tying alternate. And BMTrain's 1F1B branch (section 11).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "exec/gradient_check.h"
#include "tests/torch/execution_case.h"

namespace steptwin::test {
namespace {

constexpr std::uint32_t kSteps = 20;

struct PipelineCase {
  ExecutionCase execution;  // micro_batches: batches a step
  std::string name;
};
void PrintTo(const PipelineCase& c, std::ostream* out) { PrintTo(c.execution, out); }

const std::vector<std::string> kZero = {R"({"level": 3})",
                                        R"({"level": 0})",
                                        R"({"level": 3, "ends": "whole"})",
                                        R"({"level": 2})",
                                        R"({"level": 3, "reduce": "step", "prefetch": 0})",
                                        R"({"level": 1})",
                                        R"({"level": 3, "form": "block"})",
                                        R"({"level": 2, "ends": "whole", "reduce": "step"})",
                                        R"({"level": 3, "form": "fsdp"})",
                                        R"({"level": 3, "shard_ranks": 1})"};
const std::vector<std::string> kRecompute = {R"({"mode": "full"})", R"({"mode": "none"})", R"({"mode": "every", "every": 2})"};
const std::vector<std::string> kMessages = {R"({"p2p": "compute"})", R"({"p2p": "compute", "metadata": true})",
                                            R"({"p2p": "compute_recv"})", R"({"p2p": "lanes"})", R"({"p2p": "lanes", "metadata": true})"};

PipelineCase make(std::size_t n, int pp, int dp, int pieces, int batches, const char* backward) {
  PipelineCase c;
  c.execution = {n % 2 == 0 ? "gpt" : "llama", n / 2 % 2 == 0, "gpipe", "none", pp, dp, batches};
  std::string schedule = kMessages[n % kMessages.size()];
  schedule.insert(1, fmt::format(R"("order": "gpipe", "backward": "{}", )", backward));
  c.execution.overrides = {{"pipeline", fmt::format(R"({{"form": "bmtrain", "micro_batches": {}}})", pieces)},
                           {"schedule", schedule},
                           {"zero", kZero[n % kZero.size()]},
                           {"recompute", kRecompute[n % kRecompute.size()]}};
  c.name = fmt::format("case{}_{}_pp{}_dp{}_m{}_batches{}_{}", n, c.execution.family, pp, dp, pieces, batches, backward);
  return c;
}

// Over two stages every combination; over more the backward orders alternate.
std::vector<PipelineCase> cases() {
  std::vector<PipelineCase> all;
  std::size_t shape = 0;
  for (const auto& [pp, dp] : {std::pair{2, 1}, {2, 2}, {3, 1}, {3, 2}, {4, 1}})
    for (const int pieces : std::set<int>{1, 2, 4, 2 * pp})
      for (const int batches : {1, 3}) {
        if (2 * pp % pieces != 0) continue;
        const bool descending = (shape + shape / 2) % 2 == 1;
        ++shape;
        if (pp == 2 || !descending) all.push_back(make(all.size(), pp, dp, pieces, batches, "ascending"));
        if (pp == 2 || descending) all.push_back(make(all.size(), pp, dp, pieces, batches, "descending"));
      }
  return all;
}

class PipelineGradients : public testing::TestWithParam<PipelineCase> {};

TEST_P(PipelineGradients, and_twenty_losses_equal_the_plain_model_s_in_the_predicted_order_and_memory) {
  const Rehearsal prediction = prepared(GetParam().execution, kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_plain_results(prediction, run, plain_run(GetParam().execution, kSteps));
  EXPECT_EQ(run.losses.size(), kSteps);
  EXPECT_LT(run.losses.back(), run.losses.front());
  expect_as_predicted(prediction, run, kSteps);
}

std::string case_name(const testing::TestParamInfo<PipelineCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(cover, PipelineGradients, testing::ValuesIn(cases()), case_name);

class PipelineModes : public testing::TestWithParam<PipelineCase> {};

TEST_P(PipelineModes, give_the_same_bits_with_threads) {
  const Rehearsal prediction = prepared(GetParam().execution, 3);
  const ExecutionResult first = backend().run(prediction.schedule, execute_options(3));
  const ExecutionResult threads = backend().run(prediction.schedule, execute_options(3, ExecutionMode::Threads));
  expect_same_bits(first, threads);
  expect_as_predicted(prediction, threads, 3);
}
INSTANTIATE_TEST_SUITE_P(some, PipelineModes,
                         testing::Values(make(0, 2, 2, 4, 3, "ascending"), make(1, 3, 1, 2, 1, "descending"),
                                         make(8, 2, 2, 2, 3, "descending"), make(14, 4, 1, 8, 1, "ascending")),
                         case_name);

// What a rank's samples are decides nothing else: the step has the plain model's batch, each sample on one rank.
TEST(PipelineData, a_wrong_batch_would_be_found_out) {
  const PipelineCase c = make(0, 2, 2, 4, 1, "ascending");
  ExecutionCase other = c.execution;
  std::erase_if(other.overrides, [](const Override& o) { return o.path == "pipeline"; });
  other.micro_batches = 2;  // as many samples, numbered in another order
  const ExecutionResult run = backend().run(prepared(c.execution, 2).schedule, execute_options(2));
  const Schedule schedule = prepared(c.execution, 2).schedule;
  EXPECT_TRUE(check_against_plain(schedule, run, plain_run(other, 2)).holds) << "the batch of a step is the same however it is split";
  other.micro_batches = 1;
  EXPECT_FALSE(check_against_plain(schedule, run, plain_run(other, 2)).holds) << "half of the batch";
}

// Blocks that enter once a step, with their gradient buffers open from the first forward on.
class EnterOnce : public testing::TestWithParam<ExecutionCase> {};

TEST_P(EnterOnce, gives_the_plain_model_s_gradients_and_losses_in_the_predicted_order_and_memory) {
  const Rehearsal prediction = prepared(GetParam(), kSteps);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(kSteps));
  expect_plain_results(prediction, run, plain_run(GetParam(), kSteps));
  expect_as_predicted(prediction, run, kSteps);
  expect_same_bits(backend().run(prediction.schedule, execute_options(3)),
                   backend().run(prediction.schedule, execute_options(3, ExecutionMode::Threads)));
}

// The same bits as with blocks that enter for every micro-batch: they are gathered again, and gradients start as zeros all the same.
TEST_P(EnterOnce, changes_no_bit) {
  ExecutionCase every = GetParam();
  for (Override& o : every.overrides)
    if (const std::size_t at = o.value.find(R"(, "enter": "step")"); at != std::string::npos) o.value.resize(at), o.value += "}";
  ASSERT_NE(scenario_text(every) + every.overrides[0].value, scenario_text(GetParam()) + GetParam().overrides[0].value);
  expect_same_bits(backend().run(prepared(every, 3).schedule, execute_options(3)),
                   backend().run(prepared(GetParam(), 3).schedule, execute_options(3)));
}

ExecutionCase once(const char* family, const char* order, const char* p2p, const char* recompute, const char* form, int pp, int dp,
                   int micro_batches) {
  ExecutionCase c{family, std::string(family) == "gpt", order, recompute, pp, dp, micro_batches};
  c.overrides = {{"zero", fmt::format(R"({{"level": 3, "reshard": false, "reduce": "step", {}, "enter": "step"}})", form)},
                 {"schedule.p2p", p2p}};
  return c;
}
INSTANTIATE_TEST_SUITE_P(cases, EnterOnce,
                         testing::Values(once("gpt", "1f1b", "compute", "full", R"("form": "list")", 2, 1, 2),
                                         once("gpt", "1f1b", "compute", "full", R"("form": "list")", 2, 2, 4),
                                         once("llama", "1f1b", "lanes", "full", R"("ends": "whole")", 4, 1, 8),
                                         once("llama", "1f1b", "compute", "none", R"("form": "block")", 4, 2, 4),
                                         once("gpt", "1f1b", "compute_recv", "full", R"("form": "fsdp")", 2, 2, 4),
                                         once("gpt", "gpipe", "lanes", "none", R"("prefetch": 0)", 2, 2, 3),
                                         once("llama", "1f1b", "lanes", "full", R"("prefetch": 2)", 1, 3, 3)),
                         [](const auto& c) { return fmt::format("case{}_{}_{}", c.index, c.param.family, c.param.name()); });

// bf16 with fp32 gradients: as close to fp32 as the plain model in bf16.
TEST(PipelineBf16, is_as_close_to_fp32_as_the_plain_model_in_bf16) {
  PipelineCase c = make(0, 2, 2, 4, 3, "ascending");
  c.execution.compute = "bf16";
  const Rehearsal prediction = prepared(c.execution, 2);
  const ExecutionResult run = backend().run(prediction.schedule, execute_options(2));
  expect_close_to_fp32(prediction, run, c.execution, 2);
  expect_as_predicted(prediction, run, 2);
}

}  // namespace
}  // namespace steptwin::test
