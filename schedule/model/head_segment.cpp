// The head: final norm, projection on the vocabulary, cross entropy; its output is the mean loss, one fp32.
//
// Kept from forward to backward:
//   tensor       shape, type         when        who reads it in backward
//   (input x)    [b,s,h]  compute    always      norm backward; a buffer of its own (keeps_input)
//   norm.mean    [b,s]    fp32       LayerNorm   norm backward
//   norm.rstd    [b,s]    fp32       always      norm backward
//   norm.out     [b,s,h]  compute    always      dW of the projection
//   softmax      [b,s,V]  fp32       always      gradient of the logits (softmax - one-hot)
// and the target ids, int64 [b,s], an input of their own.
//
// As Megatron's cross entropy does (specs/memory.md 2.7): logits in the compute type, a copy in fp32 that becomes the softmax in place;
// backward turns it into the gradient in place and casts that to the compute type. So the working set (T-51) is the logits in forward
// (forward_workspace; none in fp32, where the logits themselves become the softmax) and the cast gradient in backward.
#include <algorithm>

#include "schedule/model/segments.h"

namespace steptwin {
namespace {

constexpr std::int64_t kCrossEntropyFlops = 5;  // max, subtract, exp, sum, divide
constexpr std::int64_t kCrossEntropyBackwardFlops = 2;

bool casts(const Sizes& z) { return z.compute != DType::Fp32; }
Linear projection(const Sizes& z) { return {z.h, z.V, false, ""}; }  // "head.weight": the end is "weight"

// Cast to fp32 (16-bit only); row maximum; exponentiate and sum in place; divide in place and gather the target's logarithm.
Work forward_work(const ModelShape& model, const Sizes& z) {
  const std::int64_t logits = z.tokens * z.V;
  Work work;
  work.kernels.push_back(norm_forward(model, z));
  work.kernels.push_back(linear_forward(z, projection(z)));
  if (casts(z)) work.kernels.push_back(stream_kernel(DType::Fp32, logits, 1, Bytes(logits * (z.e + 4))));
  const std::int64_t rows = z.tokens * (size_of(kTokenType) + 4);
  work.kernels.push_back(stream_kernel(DType::Fp32, logits, kCrossEntropyFlops, Bytes(logits * (4 + 8 + 8) + rows)));
  return work;
}

Work input_grad_work(const ModelShape& model, const Sizes& z, bool through_norm) {
  const std::int64_t logits = z.tokens * z.V;
  Work work;
  const std::int64_t targets = z.tokens * size_of(kTokenType);
  work.kernels.push_back(stream_kernel(DType::Fp32, logits, kCrossEntropyBackwardFlops, Bytes(logits * 8 + targets)));
  if (casts(z)) work.kernels.push_back(stream_kernel(z.compute, logits, 1, Bytes(logits * (4 + z.e))));
  if (through_norm) work.kernels.push_back(linear_input_grad(z, projection(z)));
  if (through_norm) work.kernels.push_back(norm_input_grad(model, z));
  return work;
}

Work weight_grad_work(const ModelShape& model, const Sizes& z, const WantedGradients& wanted) {
  Work work;
  add_linear_weight_grad(z, wanted, projection(z), work);
  if (const std::int64_t vectors = wanted_norm_vectors(model, wanted); vectors > 0) work.kernels.push_back(norm_weight_grad(z, vectors));
  return work;
}

SavedSet kept_for_weight_grad(const ModelShape& model, const Sizes& z, const WantedGradients& wanted) {
  SavedSet kept("head.kept");
  if (wanted.of("weight")) kept.add("norm.out", z.compute, {z.tokens, z.h});
  if (wanted.of("weight")) kept.add("d.logits", z.compute, {z.tokens, z.V});
  if (wanted_norm_vectors(model, wanted) > 0) kept.add("norm.sums", DType::Fp32, {norm_vectors(model), z.h});
  return kept;
}

}  // namespace

SegmentCost head_segment(const ModelShape& model, const Sizes& z, const WantedGradients& wanted) {
  SegmentCost cost;
  const bool through_norm = wanted.input || wanted_norm_vectors(model, wanted) > 0;
  cost.forward = forward_work(model, z);
  if (wanted.any()) cost.input_grad = input_grad_work(model, z, through_norm);
  cost.weight_grad = weight_grad_work(model, z, wanted);
  cost.keeps_input = through_norm;
  cost.output_bytes = Bytes(4);
  ForwardTensors tensors("head");
  tensors.add_norm(model, z, through_norm, wanted.of("weight"));
  tensors.when(wanted.any()).add("softmax", DType::Fp32, {z.b, z.s, z.V});
  tensors.move_into(cost);
  const Transient logits{casts(z) ? z.tokens * z.V : 0, z.e}, narrow{z.tokens * z.h, z.e}, sums{norm_vectors(model) * z.h, 4};
  cost.forward_workspace = transient_bytes({logits, {z.tokens, 4}});
  if (wanted.any()) cost.backward_workspace = transient_bytes({logits}) + (through_norm ? transient_bytes({narrow, sums}) : Bytes(0));
  SavedSet kept = kept_for_weight_grad(model, z, wanted);
  cost.kept_for_weight_grad = kept.bytes();
  cost.kept = std::move(kept).layout();
  return cost;
}

}  // namespace steptwin
