// The programs of returned hidden states: specs/bmtrain.md 5, 6.
#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/ir/liveness.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::compiled;
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
