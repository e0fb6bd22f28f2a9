#include "exec/ops/dropout.h"

#include <ATen/ATen.h>

#include "exec/ops/random_words.h"

namespace steptwin {
namespace {

constexpr int kBits = 24;  // of a word, against a threshold

std::int64_t as_signed(std::uint64_t word) { return static_cast<std::int64_t>(word); }

// Of a signed word as if it were unsigned.
at::Tensor shifted(const at::Tensor& word, int by) {
  return at::bitwise_right_shift(word, at::Scalar(by)).bitwise_and_(at::Scalar(as_signed((std::uint64_t{1} << (64 - by)) - 1)));
}

// random_word(seed, index) of every seed [n, 1] and index [1, m]: int64 products wrap.
at::Tensor words(const at::Tensor& seeds, const at::Tensor& index) {
  at::Tensor z = (index + 1).mul_(as_signed(kWordStep)) + seeds;
  z = z.bitwise_xor_(shifted(z, 30)).mul_(as_signed(kWordMix1));
  z = z.bitwise_xor_(shifted(z, 27)).mul_(as_signed(kWordMix2));
  return z.bitwise_xor_(shifted(z, 31));
}

at::Tensor sample_numbers(const MaskState& state, std::int64_t samples, const at::TensorOptions& options) {
  const at::Tensor places = at::arange(state.first_place, state.first_place + samples, options);
  const auto& [run, distance, offset] = state.order;
  return at::div(places, at::Scalar(run), "floor").mul_(distance) + at::remainder(places, at::Scalar(run)) + offset;
}

}  // namespace

std::uint64_t mask_key(std::string_view place, std::uint64_t seed) { return random_word(stream_of(place, seed), 0); }

MaskState of_probabilities(const MaskState& state) { return {random_word(state.key, 1), state.first_place, state.order}; }

void draw_mask(const MaskState& state, double p, at::Tensor mask) {
  const at::TensorOptions whole = mask.options().dtype(at::kLong);
  const std::int64_t samples = mask.size(0), elements = samples == 0 ? 0 : mask.numel() / samples;
  const at::Tensor key = at::full({samples, 1}, as_signed(state.key), whole);
  const at::Tensor numbers = sample_numbers(state, samples, whole).unsqueeze(1);
  const at::Tensor drawn = words(words(key, numbers), at::arange(elements, whole).unsqueeze(0));
  const auto threshold = static_cast<std::int64_t>(std::llround((1 - p) * static_cast<double>(1 << kBits)));
  mask.view({samples, elements}).copy_(shifted(drawn, 64 - kBits) < threshold);
}

at::Tensor drop(const at::Tensor& t, const at::Tensor& mask, double p) { return at::mul(t, mask.view(t.sizes())).mul_(1 / (1 - p)); }

}  // namespace steptwin
