// The embedding: gathers token rows (GPT: and adds position rows), then dropout.
//
// Kept from forward to backward: the token ids, int64 [b,s], which are the segment's input (keeps_input); with dropout a mask, uint8
// [b,s,h]. There is no input gradient: backward is the weight gradient alone, which adds b*s rows into the table's gradient. The other
// rows are not touched.
#include "schedule/model/segments.h"

namespace steptwin {
namespace {

bool has_positions(const ModelShape& model) { return model.family == Family::Gpt; }

Work forward_work(const ModelShape& model, const Sizes& z) {
  const std::int64_t elements = z.tokens * z.h, ids = size_of(kTokenType) * z.tokens;
  Work work;
  work.kernels.push_back(stream_kernel(z.compute, 0, 0, Bytes(2 * elements * z.e + ids)));
  if (has_positions(model)) work.kernels.push_back(stream_kernel(z.compute, elements, 1, Bytes(2 * elements * z.e + z.s * z.h * z.e)));
  if (model.dropout > 0) work.kernels.push_back(stream_kernel(z.compute, elements, 2, Bytes(elements * (2 * z.e + 1))));
  return work;
}

Work weight_grad_work(const ModelShape& model, const Sizes& z, const WantedGradients& wanted) {
  const std::int64_t elements = z.tokens * z.h, ids = size_of(kTokenType) * z.tokens, update = 2 * size_of(z.gradient);
  Work work;
  if (!wanted.parameters) return work;
  if (model.dropout > 0) work.kernels.push_back(stream_kernel(z.compute, elements, 2, Bytes(elements * (2 * z.e + 1))));
  if (wanted.of("token.weight")) work.kernels.push_back(stream_kernel(z.gradient, elements, 1, Bytes(elements * (z.e + update) + ids)));
  if (has_positions(model) && wanted.of("position.weight"))
    work.kernels.push_back(stream_kernel(z.gradient, elements, 1, Bytes(elements * z.e + z.s * z.h * update)));
  return work;
}

}  // namespace

SegmentCost embedding_segment(const ModelShape& model, const Sizes& z, const WantedGradients& wanted) {
  SegmentCost cost;
  cost.forward = forward_work(model, z);
  cost.weight_grad = weight_grad_work(model, z, wanted);
  cost.keeps_input = true;
  cost.output_bytes = Bytes(z.tokens * z.h * z.e);
  ForwardTensors tensors("embed");
  if (model.dropout > 0) tensors.when(wanted.parameters).add("mask", DType::Uint8, {z.b, z.s, z.h});
  if (model.dropout > 0 && wanted.parameters) cost.backward_workspace = transient_bytes({{z.tokens * z.h, z.e}});
  tensors.move_into(cost);
  cost.kept_for_weight_grad = transient_bytes({{z.tokens, size_of(kTokenType)}, {z.tokens * z.h, z.e}}) + cost.saved_bytes;
  return cost;
}

}  // namespace steptwin
