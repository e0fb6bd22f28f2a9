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

// The samples of a pipeline in the order in which its layers see them: place n is sample n / run * distance + n % run + offset of the run.
// As it is by default, sample n.
struct SampleOrder {
  std::int64_t run = 1, distance = 1, offset = 0;
  bool operator==(const SampleOrder&) const = default;
};

// The random state of one op: which stream, and the place of its micro-batch's first sample. What a recomputation restores; the order is
// the same for all ops of a rank.
struct MaskState {
  std::uint64_t key = 0;
  std::int64_t first_place = 0;
  SampleOrder order = {};
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
