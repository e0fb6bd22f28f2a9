// The programs of returned hidden states: specs/bmtrain.md 5, 6, 9.3.
#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/ir/liveness.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::BatchPipelineCase;
using test::compiled;
using test::compiled_pipeline;
using test::problems_of;
using Case = test::ZeroCase;

constexpr std::int64_t kHidden = 16 * 60 * 2;  // bytes: sequence 16, hidden 60, bf16

std::int64_t count(const Schedule& s, std::string_view segment) {
  return std::count_if(s.ops.begin(), s.ops.end(), [&](const Op& op) { return s.name(op.label.segment) == segment; });
}

// A copy per layer and micro-batch, an inspection per stage and micro-batch.
TEST(HiddenStates, EveryLayersInputIsCopiedAndEveryStackInspected) {
  Case c;
  c.layers = 5;
  c.pp = 2;
  c.micro_batches = 3;
  const Schedule s = compiled(c, {{"recompute.hidden_states", "true"}});
  EXPECT_EQ(problems_of(s), "");
  EXPECT_EQ(count(s, "hidden"), 5 * 3);
  EXPECT_EQ(count(s, "inspect"), 2 * 3);
  EXPECT_EQ(count(compiled(c), "hidden"), 0);
}

// An extra buffer of L hidden states while the layers run forward, and nothing behind it but four figures a layer and micro-batch.
TEST(HiddenStates, TheStackIsAnExtraBufferOfAsManyHiddenStates) {
  Case c;
  c.layers = 4;
  c.zero = R"("level": 0)";
  const Schedule without = compiled(c), with = compiled(c, {{"recompute.hidden_states", "true"}});
  const std::int64_t figures = 4 * 4 * 4;
  EXPECT_EQ(resident_bytes(with.programs[0], Space::Device).value, resident_bytes(without.programs[0], Space::Device).value + figures);
  std::int64_t stacks = 0;
  for (const Buffer& buffer : with.programs[0].buffers)
    if (buffer.layout.valid() && with.layouts[buffer.layout.value].name == "hidden.stack") stacks += buffer.bytes.value;
  EXPECT_EQ(stacks, 4 * kHidden);
  const std::vector<Bytes> a = allocated_curve(without, without.programs[0], Space::Device);
  const std::vector<Bytes> b = allocated_curve(with, with.programs[0], Space::Device);
  const auto at = [](const Schedule& s, const std::vector<Bytes>& curve, std::int32_t layer) {
    for (std::uint32_t i = 0; i < s.programs[0].op_count; ++i) {
      const Op& op = s.ops[i];
      if (op.label.phase == Phase::Forward && op.label.layer == layer && s.name(op.label.segment) == "mlp") return curve[i].value;
    }
    return std::int64_t{0};
  };
  for (const std::int32_t layer : {0, 3}) EXPECT_EQ(at(with, b, layer), at(without, a, layer) + figures + 4 * kHidden) << layer;
  EXPECT_EQ(b.back().value, a.back().value + figures) << "it dies with its inspection";
}

BatchPipelineCase with_hidden_states(BatchPipelineCase p) {
  p.more.push_back({"recompute.hidden_states", "true"});
  return p;
}

// Section 9.3: behind the last hidden state a broadcast per stage; every rank takes its own part of every layer (H behind a broadcast).
TEST(HiddenStatesOfABatchPipeline, AreBroadcastStageByStageBehindTheLastOne) {
  BatchPipelineCase p;
  p.layers = 3;
  const Schedule s = compiled_pipeline(with_hidden_states(p));
  EXPECT_EQ(test::program_text(s, 0),
            "embed AGhidden H0 AG0 F0 H1 AG1 F0 S0> H0 F1 H1 F1 S1> BC1 BC0 H0 H1 BC1 H2 inspect head head' AGgradient "
            "<R0 Z1 FB0 Z0 FB0 <R1 FB1 RS1 FB1 RS0 BC0 embed'");
  EXPECT_EQ(test::program_text(s, 1),
            "embed AGhidden <R0 H2 AG2 F0 <R1 H2 F1 BC1 BC0 H0 H1 BC1 H2 inspect head head' AGgradient Z2 FB0 S0> FB1 RS2 S1> BC0 embed'");
}

// Every stage's stack of len_s * H goes to all ranks: L * H a batch, beside the H of the last hidden state and of the input gradient.
TEST(HiddenStatesOfABatchPipeline, CostABroadcastOfEveryLayersInput) {
  const auto broadcast = [](const Schedule& s, const Program& program) {
    std::int64_t bytes = 0;
    for (const Op& op : s.ops_of(program)) bytes += std::holds_alternative<Broadcast>(op.body) ? bytes_of(op.body).value : 0;
    return bytes;
  };
  for (const int pp : {2, 3, 4})
    for (const int batches : {1, 3}) {
      BatchPipelineCase p;
      p.pp = pp, p.dp = 2, p.layers = pp + 1, p.pieces = pp, p.batches = batches;
      const Schedule s = compiled_pipeline(with_hidden_states(p)), without = compiled_pipeline(p);
      const std::int64_t h = test::hidden_of_the_pipeline(p) * batches;
      for (std::size_t stage = 0; stage < s.programs.size(); ++stage) {
        EXPECT_EQ(broadcast(without, without.programs[stage]), 2 * h);
        EXPECT_EQ(broadcast(s, s.programs[stage]), (2 + p.layers) * h);
      }
    }
}

// Of stage s: its stack, len_s * H, from its first layer to its broadcast; what it receives of another, len_i * H, as long as it copies; its
// own samples of all layers, L * H / p, to the inspection. Four figures a layer and batch stay.
TEST(HiddenStatesOfABatchPipeline, TakeAStackOfTheStageAReceivedOneAndTheOwnSamples) {
  BatchPipelineCase p;
  p.pp = 3, p.layers = 7, p.pieces = 2, p.samples = 4;
  const Schedule s = compiled_pipeline(with_hidden_states(p)), without = compiled_pipeline(p);
  const std::int64_t h = test::hidden_of_the_pipeline(p), layers[] = {3, 2, 2};
  for (std::size_t stage = 0; stage < 3; ++stage) {
    const Program& program = s.programs[stage];
    const auto stacks = [&](std::uint32_t op) {
      return test::alive(s, program, op, [&](const Buffer& b) {
        return b.layout.valid() && s.layouts[b.layout.value].name == "hidden.stack" ? b.bytes.value : 0;
      });
    };
    std::size_t broadcasts = 0;
    for (std::uint32_t i = 0; i < program.op_count; ++i) {
      const Op& op = s.ops[program.first_op.value + i];
      const std::string name = test::name_of_op(s, op);
      const bool layer = op.label.layer >= 0 && op.label.phase == Phase::Forward && std::holds_alternative<Compute>(op.body);
      if (layer) {
        EXPECT_EQ(stacks(i), layers[stage] * h);
      }
      if (name == "head" || name == "head'") {
        EXPECT_EQ(stacks(i), 0) << "they died with the inspection";
      }
      if (!name.starts_with("BC") || op.label.phase != Phase::Forward) continue;
      if (const std::size_t of = broadcasts++; of > 0) {  // behind the last hidden state
        const std::int64_t own = of - 1 <= stage ? layers[stage] : 0, received = of - 1 == stage ? 0 : layers[of - 1];
        EXPECT_EQ(stacks(i), (own + received) * h + (of > 1 ? 7 * h / 3 : 0)) << "stage " << stage << " broadcast " << of;
      }
    }
    EXPECT_EQ(broadcasts, 4u);
    EXPECT_EQ(resident_bytes(program, Space::Device).value,
              resident_bytes(without.programs[stage], Space::Device).value + p.layers * 4 * 4);
  }
}

TEST(HiddenStates, AreRefusedWithTheSqrtListWhichKeepsOnlySomeOfThem) {
  Case c;
  c.recompute = "sqrt";
  try {
    compiled(c, {{"recompute.hidden_states", "true"}});
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.problems()[0].code, "RECOMPUTE");
    EXPECT_EQ(error.problems()[0].help, "write \"mode\": \"full\", or remove \"hidden_states\"");
  }
}

}  // namespace
}  // namespace steptwin
