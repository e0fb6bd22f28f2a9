// Masks of dropout, one byte an element: 1 keeps it. A mask depends on (seed, step, place in the model, sample, element) alone, by the
// sample's number in the run, which counts over steps; so however a batch is split over micro-batches and ranks, the same elements are
// dropped. By LibTorch's integer functions: the same bits on every device. A .cpp file that includes this header includes ATen first.
#pragma once

#include <cstdint>
#include <string_view>

namespace at {
class Tensor;
}

namespace steptwin {

// The random state of one op: which stream, and the number of its micro-batch's first sample. What a recomputation restores.
struct MaskState {
  std::uint64_t key = 0;
  std::int64_t first_sample = 0;
  bool operator==(const MaskState&) const = default;
};
// `place`: "embed", "layers.3.attn", "layers.3.mlp".
std::uint64_t mask_key(std::string_view place, std::uint64_t seed);
// Of the dropout on attention probabilities, beside the one on the attention's output.
MaskState of_probabilities(const MaskState& state);

// Fills mask [samples, ..], uint8: 0 with probability p.
void draw_mask(const MaskState& state, double p, at::Tensor mask);
// t where the mask keeps it, divided by 1 - p; else 0. A tensor of its own, of t's type.
at::Tensor drop(const at::Tensor& t, const at::Tensor& mask, double p);

}  // namespace steptwin
