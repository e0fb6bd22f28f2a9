#include "schedule/base/error.h"
#include "schedule/model/segments.h"

namespace steptwin {

const char* segment_name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::Embedding: return "embed";
    case SegmentKind::Attention: return "attn";
    case SegmentKind::Mlp: return "mlp";
    case SegmentKind::Head: return "head";
  }
  return "";
}

SegmentCost segment_cost(const ModelShape& model, SegmentKind kind, const BatchShape& batch, DType compute, DType gradient) {
  const Sizes z = sizes_of(model, batch, compute, gradient);
  switch (kind) {
    case SegmentKind::Embedding: return embedding_segment(model, z);
    case SegmentKind::Attention: return attention_segment(model, z);
    case SegmentKind::Mlp: return mlp_segment(model, z);
    case SegmentKind::Head: return head_segment(model, z);
  }
  throw InternalError("segment_cost: unknown segment kind");
}

Work join(const Work& first, const Work& second) {
  Work both = first;
  both.kernels.insert(both.kernels.end(), second.kernels.begin(), second.kernels.end());
  return both;
}

Bytes token_ids_bytes(const BatchShape& batch) { return Bytes(batch.micro_batch * batch.sequence * size_of(kTokenType)); }

Bytes layer_activation_bytes(const ModelShape& model, const BatchShape& batch, DType compute) {
  Bytes sum;
  for (const SegmentKind kind : {SegmentKind::Attention, SegmentKind::Mlp}) {
    const SegmentCost cost = segment_cost(model, kind, batch, compute);
    for (const TensorSpec& tensor : cost.saved.tensors) sum += tensor.bytes();
    sum += Bytes(batch.micro_batch * batch.sequence * model.hidden * size_of(compute));  // keeps_input
  }
  return sum;
}

// Forward matmuls and attention once, backward twice that. The segments' own kernels are not asked: flash backward's recomputation of
// the scores (2.5 instead of 2) is work of an implementation, not of the model.
Flops model_flops_per_micro_batch(const ModelShape& model, const BatchShape& batch) {
  const std::int64_t tokens = batch.micro_batch * batch.sequence, h = model.hidden;
  const std::int64_t q = model.heads * model.head_size, kv = model.kv_heads * model.head_size;
  const std::int64_t mlp_matrices = model.family == Family::Gpt ? 2 : 3;
  const std::int64_t layer = 2 * tokens * h * (2 * q + 2 * kv + mlp_matrices * model.ffn) + 4 * tokens * batch.sequence * q;
  return Flops(3 * (model.layers * layer + 2 * tokens * h * model.vocabulary));
}

bool sizes_fit(const ModelShape& model, const BatchShape& batch) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double tokens = real(batch.micro_batch) * real(batch.sequence), h = real(model.hidden), L = real(model.layers);
  const double q = real(model.heads) * real(model.head_size), kv = real(model.kv_heads) * real(model.head_size);
  const double layer = h * (2 * q + 2 * kv + 3 * real(model.ffn)) + 8 * (h + q + kv + real(model.ffn));
  const double matrices = L * layer + h * (2 * real(model.vocabulary) + real(model.positions));
  const double scores = real(batch.micro_batch) * real(model.heads) * real(batch.sequence) * real(batch.sequence);
  const double flops = 6 * matrices * tokens + 24 * L * scores * real(model.head_size);
  const double bytes = 40 * (tokens * (h + q + 2 * kv + real(model.ffn) + real(model.vocabulary)) + scores) + 32 * matrices;
  constexpr double kLimit = 2305843009213693952.0;  // 2^61
  return flops < kLimit && bytes < kLimit;
}

}  // namespace steptwin
