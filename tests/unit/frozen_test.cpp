// Frozen parameters: what a pattern names, what is left of every segment's backward, and the programs, bytes and flops that follow
// (specs/bmtrain.md 2.1, 4, B-F16, B-F17).
#include "schedule/model/frozen.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "schedule/compile.h"
#include "schedule/ir/text.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::compiled;
using test::load_name;
using test::problems_of;
using Case = test::ZeroCase;
using testing::ElementsAre;

Schedule with_frozen(const Case& c, const std::string& patterns, std::vector<Override> overrides = {}) {
  overrides.push_back({"model.frozen", patterns});
  return compiled(c, overrides);
}

TEST(FrozenPattern, IsAWholeNameWithStarsAndRanges) {
  for (const auto& [pattern, name] : {std::pair{"embed.token.weight", "embed.token.weight"},
                                      {"embed*", "embed.position.weight"},
                                      {"*", "head.weight"},
                                      {"*.bias", "layers.3.attn.qkv.bias"},
                                      {"layers.0-3.*", "layers.3.mlp.up.weight"},
                                      {"layers.7-12.*.norm.*", "layers.10.attn.norm.bias"},
                                      {"layers.*.norm.weight", "layers.10.attn.norm.weight"},
                                      {"*.0-1.attn*weight", "layers.1.attn.out.weight"},
                                      {"**t", "head.weight"}})
    EXPECT_TRUE(matches_name(pattern, name)) << pattern << " " << name;
  for (const auto& [pattern, name] : {std::pair{"embed", "embed.token.weight"},
                                      {"layers.0-3.*", "layers.4.mlp.up.weight"},
                                      {"layers.0-3.*", "layers.30.mlp.up.weight"},
                                      {"layers.3-0.*", "layers.1.mlp.up.weight"},
                                      {"layers.1.*", "layers.11.mlp.up.weight"},
                                      {"*bias", "layers.1.attn.qkv.weight"},
                                      {"layers.0-99999999999999999999.*", "layers.1.mlp.up.weight"},
                                      {"", "head.weight"}})
    EXPECT_FALSE(matches_name(pattern, name)) << pattern << " " << name;
}

TEST(FrozenPattern, ThatMatchesNothingIsAnsweredWithOneThatDoes) {
  const std::vector<std::string> names = {"embed.token.weight", "layers.0.attn.qkv.weight", "layers.0.mlp.up.bias", "head.norm.weight"};
  EXPECT_EQ(nearest_pattern("layer.0.*", names), "layers.0.*");
  EXPECT_EQ(nearest_pattern("embed.tokens.weight", names), "embed.token.weight");
  EXPECT_EQ(nearest_pattern("layers.0-3", names), "layers.0-3.*");
  EXPECT_EQ(nearest_pattern("bias", names), "*.bias");
  EXPECT_EQ(nearest_pattern("layers.*.atn.*.wieght", names), "layers.*.attn.*.weight");
  EXPECT_EQ(nearest_pattern("layers.7-9.*", names), "layers.0.*");
  EXPECT_EQ(nearest_pattern("what", names), "");
}

ModelShape model(std::vector<std::string> frozen, bool tied = false) {
  ModelShape m = *std::find_if(model_presets().begin(), model_presets().end(), [](const ModelShape& p) { return p.name == "gpt2"; });
  m.layers = 2;
  m.tied = tied;
  m.frozen = std::move(frozen);
  return m;
}

// "input parameters" of the embedding, both halves of two layers, and the head: letters for what is wanted.
std::string wanted(const ModelShape& m) {
  std::string text;
  for (const WantedGradients& w : wanted_gradients(m))
    text += std::string(text.empty() ? "" : " ") + (w.any() ? "" : "-") + (w.input ? "x" : "") + (w.parameters ? "w" : "");
  return text;
}

TEST(WantedGradients, FollowAutograd) {
  EXPECT_EQ(wanted(model({})), "w xw xw xw xw xw");
  EXPECT_EQ(wanted(model({"embed*"})), "- w xw xw xw xw");
  EXPECT_EQ(wanted(model({"embed*", "layers.0.*"})), "- - - w xw xw");
  EXPECT_EQ(wanted(model({"layers.*"})), "w x x x x xw");
  EXPECT_EQ(wanted(model({"embed*", "layers.*"})), "- - - - - w");
  EXPECT_EQ(wanted(model({"embed*", "layers.0.attn.*", "layers.1.*", "head*"})), "- - w x x x");
  EXPECT_EQ(wanted(model({"*.weight"})), "- w xw xw xw xw");
  EXPECT_EQ(wanted(model({"embed.token.weight", "head.norm.*"}, true)), "w xw xw xw xw x") << "the tied table is frozen for the head too";
}

std::vector<std::string> names(const Layout& layout) {
  std::vector<std::string> out;
  for (const TensorSpec& tensor : layout.tensors) out.push_back(tensor.name);
  return out;
}

// What PyTorch's layers save: a linear layer its input for its weight's gradient alone, a norm its input and statistics, an activation its
// input.
TEST(SegmentSaves, WhatItsWantedGradientsNeed) {
  const ModelShape m = model({});
  const auto cost = [&](SegmentKind kind, WantedGradients w) { return segment_cost(m, kind, {2, 8}, DType::Bf16, DType::Fp32, w); };
  const std::vector<std::string> mlp = {"norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "down.bias"};
  const SegmentCost passed = cost(SegmentKind::Mlp, {true, false, mlp});
  EXPECT_THAT(names(passed.saved), ElementsAre("norm.mean", "norm.rstd", "pre_gelu"));
  EXPECT_THAT(names(passed.passing), ElementsAre("norm.out", "gelu"));
  EXPECT_TRUE(passed.keeps_input);
  EXPECT_TRUE(passed.weight_grad.kernels.empty());
  const SegmentCost last_bias = cost(SegmentKind::Mlp, {false, true, {"norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight"}});
  EXPECT_THAT(names(last_bias.saved), ElementsAre());
  EXPECT_FALSE(last_bias.keeps_input);
  EXPECT_TRUE(last_bias.input_grad.kernels.empty());
  EXPECT_EQ(last_bias.weight_grad.kernels.size(), 1u);
  const SegmentCost down = cost(SegmentKind::Mlp, {false, true, {"norm.weight", "norm.bias", "up.weight", "up.bias"}});
  EXPECT_THAT(names(down.saved), ElementsAre("gelu"));
  const SegmentCost none = cost(SegmentKind::Mlp, {false, false, mlp});
  EXPECT_EQ(none.saved_bytes.value + none.backward_workspace.value + none.kept_for_weight_grad.value, 0);
  EXPECT_EQ(none.passing_bytes, cost(SegmentKind::Mlp, {}).saved_bytes);
  const SegmentCost attention = cost(SegmentKind::Attention, {true, true, {"norm.weight", "qkv.weight", "out.weight"}});  // biases alone
  EXPECT_THAT(names(attention.saved), ElementsAre("norm.mean", "norm.rstd", "qkv", "core.out", "lse"));
  EXPECT_THAT(names(attention.kept), ElementsAre("dy", "d.qkv", "norm.sums"));
  const SegmentCost head = cost(SegmentKind::Head, {true, false, {"norm.weight", "norm.bias", "weight"}});
  EXPECT_THAT(names(head.saved), ElementsAre("norm.mean", "norm.rstd", "softmax"));
}

TEST(ModelFlops, FallWithWhatIsFrozen) {
  const BatchShape batch{2, 128};
  const std::int64_t tokens = 256, h = 768, V = 50257;
  const std::int64_t linears = 2 * 2 * tokens * 12 * h * h, core = 2 * 4 * tokens * 128 * h, head = 2 * tokens * h * V;
  const auto flops = [&](std::vector<std::string> frozen) { return model_flops_per_micro_batch(model(std::move(frozen)), batch).value; };
  EXPECT_EQ(flops({}), 3 * (linears + core + head));
  EXPECT_EQ(flops({"embed*", "layers.*"}), linears + core + 3 * head);
  EXPECT_EQ(flops({"layers.*"}), 2 * linears + 3 * core + 3 * head);
  EXPECT_EQ(flops({"embed*", "layers.0.*"}), 2 * linears + 2 * core + 3 * head) << "one layer forward, one whole";
  EXPECT_EQ(flops({"embed.position.weight", "head.weight"}), 3 * (linears + core) + 2 * head);
}

// The compute ops of a program that have this phase, as "attn1".
std::string ops_of_phase(const Schedule& s, const Program& p, Phase phase) {
  std::string text;
  for (const Op& op : s.ops_of(p))
    if (std::holds_alternative<Compute>(op.body) && op.label.phase == phase)
      text += fmt::format("{}{}{}", text.empty() ? "" : " ", s.name(op.label.segment),
                          op.label.layer < 0 ? "" : std::to_string(op.label.layer));
  return text;
}

std::int64_t messages(const Schedule& s, const Program& p, Phase phase) {
  const auto ops = s.ops_of(p);
  return std::count_if(ops.begin(), ops.end(), [&](const Op& op) {
    return op.label.phase == phase && (std::holds_alternative<Send>(op.body) || std::holds_alternative<Recv>(op.body));
  });
}

// Buffers of a program in which an op writes the gradient of a hidden state.
std::set<std::string> writers_of_input_gradients(const Schedule& s, const Program& p) {
  std::set<std::string> out;
  for (std::uint32_t k = 0; k < p.op_count; ++k) {
    const Op& op = s.ops[p.first_op.value + k];
    if (!std::holds_alternative<Compute>(op.body) || op.label.phase != Phase::Backward) continue;
    for (const Access& a : s.accesses_of(OpId(p.first_op.value + k))) {
      const Buffer& b = p.buffers[a.buffer.value];
      if (a.mode == AccessMode::Write && b.layout.valid() && s.layouts[b.layout.value].name == "hidden")
        out.insert(fmt::format("{}{}", s.name(op.label.segment), op.label.layer));
    }
  }
  return out;
}

TEST(FrozenPipeline, BackwardEndsAtTheFirstTrainedSegmentAndNoMessageLeavesIt) {
  Case c{R"("level": 0)", 4, 1, 2, 3, "none", "1f1b"};
  c.tied = false;
  const Schedule s = with_frozen(c, R"(["embed*", "layers.0-1.*", "layers.2.attn.*"])");
  EXPECT_EQ(problems_of(s), "");
  EXPECT_EQ(ops_of_phase(s, s.programs[0], Phase::Backward), "");
  EXPECT_EQ(ops_of_phase(s, s.programs[0], Phase::Update), "");
  EXPECT_EQ(ops_of_phase(s, s.programs[1], Phase::Backward), "head mlp3 attn3 mlp2 head mlp3 attn3 mlp2 head mlp3 attn3 mlp2");
  EXPECT_EQ(writers_of_input_gradients(s, s.programs[1]), (std::set<std::string>{"head-1", "mlp3", "attn3"}));
  EXPECT_EQ(messages(s, s.programs[0], Phase::Backward) + messages(s, s.programs[1], Phase::Backward), 0);
  EXPECT_EQ(messages(s, s.programs[0], Phase::Forward), 3);
  const Schedule lower = with_frozen(c, R"(["layers.2-3.*", "head.*"])");  // the other way round: passed through, nothing to step
  EXPECT_EQ(problems_of(lower), "");
  EXPECT_EQ(messages(lower, lower.programs[1], Phase::Backward), 3);
  EXPECT_EQ(ops_of_phase(lower, lower.programs[1], Phase::Update), "");
}

TEST(FrozenBackward, TheLayersThatAreNotTrainedAreNotRecomputed) {
  Case c{R"("level": 0)", 4};
  c.tied = false;
  const std::string frozen = R"(["embed*", "layers.0.*", "layers.1.attn.*"])";
  const auto again = [&](const std::string& mode) {
    c.recompute = mode;
    const Schedule s = with_frozen(c, frozen);
    EXPECT_EQ(problems_of(s), "");
    return ops_of_phase(s, s.programs[0], Phase::Recompute);
  };
  EXPECT_EQ(again("full"), "attn3 mlp3 attn2 mlp2 mlp1");
  EXPECT_EQ(again(test::kEveryTwo), "attn3 mlp3 mlp1 attn2 mlp2") << "groups are counted from layer 1";
  EXPECT_EQ(again("sqrt"), "attn3 mlp3 mlp1 attn2 mlp2 mlp1") << "the list of three layers";
}

std::int64_t resident(const Program& p, std::initializer_list<Category> categories) {
  std::int64_t sum = 0;
  for (const Buffer& b : p.buffers)
    if (b.resident && std::find(categories.begin(), categories.end(), b.category) != categories.end()) sum += b.bytes.value;
  return sum;
}

// hidden 60, vocabulary 97, positions 32, two layers: a layer has 12 h^2 weights and 13 h vectors' elements.
TEST(FrozenState, GradientsAndOptimizerStatesAreThoseOfTheTrainedParameters) {
  constexpr std::int64_t h = 60, layer = 12 * h * h + 13 * h, biases = 11 * h, all = (97 + 32) * h + 2 * layer + 2 * h;
  Case c{R"("level": 0)", 2, 1};
  const auto expect = [&](const std::string& frozen, std::int64_t trained) {
    const Program p = with_frozen(c, frozen).programs[0];
    EXPECT_EQ(resident(p, {Category::Param}), 2 * all) << frozen;
    EXPECT_EQ(resident(p, {Category::Gradient}), 4 * trained) << frozen;
    EXPECT_EQ(resident(p, {Category::Optimizer}), 12 * trained) << frozen;
  };
  expect("[]", all);
  expect(R"(["embed*", "layers.0.*"])", layer + 2 * h);
  expect(R"(["*.weight"])", 2 * biases + h);
  c.zero = R"("level": 3)", c.dp = 4;
  const Program p = with_frozen(c, R"(["layers.*.weight"])").programs[0];
  const std::int64_t own = 2 * (6 * 256 / 4) + (97 * h + 32 * h + 2 * h) / 4;  // six biases a layer at steps of 256 elements; the ends
  EXPECT_EQ(resident(p, {Category::GradientShard}), 4 * own);
  EXPECT_EQ(resident(p, {Category::Optimizer}), 12 * own);
}

std::int64_t count_ops(const Schedule& s, const Program& p, bool (*is)(const Op&)) {
  const auto ops = s.ops_of(p);
  return std::count_if(ops.begin(), ops.end(), is);
}

// What every rank takes part in before its optimizer, a rank that steps nothing takes part in too.
TEST(FrozenPipeline, AStageWithNothingToStepAgreesOnOverflowNormAndLossScale) {
  Case c{R"("level": 0)", 4, 2, 2, 2, "none", "1f1b"};
  for (const char* frozen : {R"(["embed*", "layers.0-1.*"])", R"(["layers.2-3.*", "head.norm.*", "embed.token.weight"])"})
    for (const char* level : {R"("level": 0)", R"("level": 2)", R"("level": 3)"}) {
      c.zero = level;
      const Schedule s = with_frozen(c, frozen, {{"optimizer.clip", "1"}, {"optimizer.loss_scale", "64"}});
      EXPECT_EQ(problems_of(s), "") << frozen << level;
      for (const Program& p : s.programs) {
        const auto reduces = [](const Op& op) {
          return std::holds_alternative<AllReduce>(op.body) && op.lane == LaneId(0);  // on the compute lane: flag and norm
        };
        EXPECT_EQ(count_ops(s, p, reduces), 2);
        EXPECT_THAT(ops_of_phase(s, p, Phase::Update), testing::HasSubstr("rescale"));
      }
    }
}

TEST(FrozenTable, HasOneRuleForBothUses) {
  Case c{R"("level": 3)", 2, 2, 2, 2, "none", "1f1b"};
  const Schedule remote = with_frozen(c, R"(["embed.token.weight"])");
  EXPECT_EQ(problems_of(remote), "");
  EXPECT_TRUE(
      std::any_of(remote.communicators.begin(), remote.communicators.end(), [](const auto& comm) { return comm.name == "pp.tied"; }));
  for (const Program& p : remote.programs)
    for (const Buffer& b : p.buffers) {
      const std::string_view name = b.name.valid() ? remote.name(b.name) : std::string_view();
      EXPECT_FALSE(name.starts_with("head.weight.") && !name.ends_with(".param")) << name;
      EXPECT_FALSE(name.starts_with("embed.token.weight.") && !name.ends_with(".param")) << name;
    }
  c.pp = 1, c.micro_batches = 1;  // one table on the rank, gathered once and held for the head's backward
  const Schedule local = with_frozen(c, R"(["embed*"])");
  EXPECT_EQ(problems_of(local), "");
  const auto gathers_end = [](const Op& op) { return std::holds_alternative<AllGather>(op.body) && op.label.layer < 0; };
  EXPECT_EQ(count_ops(local, local.programs[0], gathers_end), 2 + 2) << "table, positions; the head's norm";
}

}  // namespace
}  // namespace steptwin
