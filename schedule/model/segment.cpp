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

SegmentCost segment_cost(const ModelShape& model, SegmentKind kind, const BatchShape& batch, DType compute, DType gradient,
                         const WantedGradients& wanted) {
  const Sizes z = sizes_of(model, batch, compute, gradient);
  switch (kind) {
    case SegmentKind::Embedding: return embedding_segment(model, z, wanted);
    case SegmentKind::Attention: return attention_segment(model, z, wanted);
    case SegmentKind::Mlp: return mlp_segment(model, z, wanted);
    case SegmentKind::Head: return head_segment(model, z, wanted);
  }
  throw InternalError("segment_cost: unknown segment kind");
}

Work join(const Work& first, const Work& second) {
  Work both = first;
  both.kernels.insert(both.kernels.end(), second.kernels.begin(), second.kernels.end());
  return both;
}

Bytes token_ids_bytes(const BatchShape& batch) { return Bytes(batch.micro_batch * batch.sequence * size_of(kTokenType)); }

Bytes segment_activation_bytes(const ModelShape& model, SegmentKind kind, const BatchShape& batch, DType compute,
                               const WantedGradients& wanted) {
  const SegmentCost cost = segment_cost(model, kind, batch, compute, DType::Fp32, wanted);
  Bytes sum;
  for (const TensorSpec& tensor : cost.saved.tensors) sum += tensor.bytes();
  if (cost.keeps_input) sum += Bytes(batch.micro_batch * batch.sequence * model.hidden * size_of(compute));
  return sum;
}

Bytes layer_activation_bytes(const ModelShape& model, const BatchShape& batch, DType compute) {
  return segment_activation_bytes(model, SegmentKind::Attention, batch, compute, {}) +
         segment_activation_bytes(model, SegmentKind::Mlp, batch, compute, {});
}

namespace {

std::int64_t linear_flops(const Sizes& z, const Linear& linear) { return 2 * z.tokens * linear.in * linear.out; }

// Forward; gradients of the weights that are wanted; gradients on the way down as far as they go. `core` of the forward.
std::int64_t half_layer_flops(const ModelShape& model, const Sizes& z, const HalfLayer& half, std::int64_t core,
                              const WantedGradients& wanted) {
  const Depth depth = depth_of(model, half, wanted);
  const auto times = [](bool needed) { return needed ? 1 : 0; };
  std::int64_t sum = core * (1 + 2 * times(depth.core));
  sum += linear_flops(z, half.out) * (1 + times(wants_weight(wanted, half.out)) + times(depth.core));
  for (const Linear& linear : half.in) sum += linear_flops(z, linear) * (1 + times(wants_weight(wanted, linear)) + times(depth.norm));
  return sum;
}

}  // namespace

// Forward matmuls and attention once, backward twice that. The segments' own kernels are not asked: flash backward's recomputation of
// the scores (2.5 instead of 2) is work of an implementation, not of the model.
Flops model_flops_per_micro_batch(const ModelShape& model, const BatchShape& batch) {
  const Sizes z = sizes_of(model, batch, DType::Bf16, DType::Fp32);
  const std::vector<WantedGradients> wanted = wanted_gradients(model);
  const HalfLayer attention = attention_half(model, z), mlp = mlp_half(model, z);
  std::int64_t sum = 0;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::size_t place = segment_place(model, SegmentKind::Attention, layer);
    sum += half_layer_flops(model, z, attention, 4 * z.tokens * z.s * z.q, wanted[place]);
    sum += half_layer_flops(model, z, mlp, 0, wanted[place + 1]);
  }
  const WantedGradients& head = wanted.back();
  const bool down = head.input || wanted_norm_vectors(model, head) > 0;
  return Flops(sum + 2 * z.tokens * z.h * z.V * (1 + (head.of("weight") ? 1 : 0) + (down ? 1 : 0)));
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
