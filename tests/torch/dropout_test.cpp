// Dropout's masks (exec/ops/dropout.h).
#include "exec/ops/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "exec/ops/random_words.h"

namespace steptwin {
namespace {

// Element by element from the counter-based words; a part of the samples has the same rows.
TEST(Masks, AreThoseOfTheirSamplesAndDropTheShareAskedFor) {
  const MaskState state{mask_key("layers.3.attn", 7), 1000};
  const at::Tensor mask = at::empty({6, 50, 40}, at::TensorOptions(at::kByte)), part = at::empty({2, 50, 40}, at::TensorOptions(at::kByte));
  draw_mask(state, 0.25, mask);
  draw_mask({state.key, 1003}, 0.25, part);
  EXPECT_TRUE(at::equal(mask.narrow(0, 3, 2), part));
  const std::uint64_t threshold = 3 * (std::uint64_t{1} << 62);
  for (std::int64_t sample = 0; sample < 6; ++sample)
    for (std::int64_t i = 0; i < 2000; ++i) {
      const std::uint64_t word =
          random_word(random_word(state.key, static_cast<std::uint64_t>(1000 + sample)), static_cast<std::uint64_t>(i));
      ASSERT_EQ(mask.view({6, 2000})[sample][i].item<int>(), word < threshold ? 1 : 0) << sample << " " << i;
    }
  EXPECT_NEAR(mask.to(at::kDouble).mean().item<double>(), 0.75, 0.02);  // five deviations of 12,000 draws
  for (const MaskState& other :
       {of_probabilities(state), MaskState{mask_key("layers.3.mlp", 7), 1000}, MaskState{mask_key("layers.3.attn", 8), 1000}}) {
    at::Tensor another = at::empty_like(mask);
    draw_mask(other, 0.25, another);
    EXPECT_NEAR(at::eq(mask, another).to(at::kDouble).mean().item<double>(), 0.75 * 0.75 + 0.25 * 0.25, 0.03) << "independent";
  }
}

// Pipeline 2 of 3, batches of 4: its places 0 to 3 are samples 8 to 11, 4 to 7 are 20 to 23.
TEST(Masks, FollowTheOrderOfTheSamples) {
  const std::uint64_t key = mask_key("layers.0.attn", 7);
  const at::Tensor whole = at::empty({36, 50}, at::TensorOptions(at::kByte)), part = at::empty({6, 50}, at::TensorOptions(at::kByte));
  draw_mask({key, 0}, 0.5, whole);
  draw_mask({key, 6, {4, 12, 8}}, 0.5, part);
  const std::int64_t expected[] = {22, 23, 32, 33, 34, 35};
  for (std::int64_t row = 0; row < 6; ++row) EXPECT_TRUE(at::equal(part[row], whole[expected[row]])) << row;
}

TEST(Masks, KeepTheMean) {
  const at::Tensor mask = at::empty({4, 10000}, at::TensorOptions(at::kByte)), ones = at::ones({4, 10000}, at::TensorOptions(at::kFloat));
  draw_mask({mask_key("embed", 1), 0}, 0.1, mask);
  const at::Tensor kept = drop(ones, mask, 0.1);
  EXPECT_NEAR(kept.mean().item<double>(), 1, 0.01);
  EXPECT_EQ(kept.max().item<float>(), 1 / 0.9f);
  EXPECT_EQ(kept.min().item<float>(), 0);
}

}  // namespace
}  // namespace steptwin
