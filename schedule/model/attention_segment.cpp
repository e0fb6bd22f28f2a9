// The attention half of a layer.
//
// Kept from forward to backward, e = bytes of the compute type:
//   tensor          shape, type            when             who reads it in backward
//   (input x)       [b,s,h]    compute     always           norm backward; the residual stream, a buffer of its own (keeps_input)
//   norm.mean       [b,s]      fp32        LayerNorm        norm backward
//   norm.rstd       [b,s]      fp32        always           norm backward
//   norm.out        [b,s,h]    compute     always           dW of the q, k, v projections
//   qkv             [b,s,3h]   compute     GPT              attention backward (one packed projection)
//   q, k, v         [b,s,ad], [b,s,kd]x2   Llama            attention backward; q and k after the rotation (rotated in place)
//   core.out        [b,s,ad]   compute     always           dW of the output projection; flash: row sums of dO*O
//   lse             [b,a,s]    fp32        flash            recomputes the probabilities tile by tile
//   probabilities   [b,a,s,s]  compute     not flash        softmax backward, (without dropout) dV
//   core.mask       [b,a,s,s]  uint8       not flash, dropout   dropout backward
//   core.dropped    [b,a,s,s]  compute     not flash, dropout   dV
//   mask            [b,s,h]    uint8       dropout          dropout on the output projection
// "always" is: where all gradients are wanted. A tensor whose readers are not wanted (frozen projections: norm.out, core.out; nothing below
// the core: the core's own; nothing below the norm: x and its statistics) dies with the forward. core.out stays with the core's tensors.
// Flash attention draws its dropout again from (seed, layer, micro-batch): nothing is kept for it.
//
// Attention counts all s*s scores also under the causal mask (cost_models.md 9, as MFU definitions do); a device that skips the upper
// half shows it as a higher attention efficiency. Flash backward: five matmuls against two, 2.5 times forward (cost_models.md 10).
#include <algorithm>

#include "schedule/model/segments.h"

namespace steptwin {
namespace {

constexpr std::int64_t kSoftmaxFlops = 5;          // max, subtract, exp, sum, divide
constexpr std::int64_t kSoftmaxBackwardFlops = 4;  // product, row sum, subtract, product
constexpr std::int64_t kRopeFlops = 3;             // two products and a sum per element

bool has_dropout(const ModelShape& model) { return model.dropout > 0; }
bool is_gpt(const ModelShape& model) { return model.family == Family::Gpt; }

std::vector<Linear> projections(const ModelShape& model, const Sizes& z) {
  if (is_gpt(model)) return {{z.h, z.q + 2 * z.kv, true, "qkv"}};
  return {{z.h, z.q, false, "q"}, {z.h, z.kv, false, "k"}, {z.h, z.kv, false, "v"}};
}

// Rotates q and k in place; cosines and sines [s, d] in fp32 are read once. The same for backward (the inverse rotation).
Kernel rope(const Sizes& z) {
  const std::int64_t elements = z.tokens * (z.q + z.kv);
  return stream_kernel(z.compute, elements, kRopeFlops, Bytes(2 * elements * z.e + 4 * z.s * z.d));
}

Kernel flash(const Sizes& z, std::int64_t flops, std::int64_t bytes) {
  Kernel kernel;
  kernel.kind = Kernel::Kind::Attention;
  kernel.dtype = z.compute;
  kernel.batch = z.b * z.a;
  kernel.m = kernel.n = z.s;
  kernel.k = z.d;
  kernel.flops = Flops(flops);
  kernel.bytes = Bytes(bytes);
  return kernel;
}

std::int64_t qkv_width(const Sizes& z) { return z.q + 2 * z.kv; }

void add_flash_forward(const Sizes& z, std::vector<Kernel>& kernels) {
  kernels.push_back(flash(z, 4 * z.scores * z.d, z.tokens * (qkv_width(z) + z.q) * z.e + 4 * z.tokens * z.a));
}

// Row sums of dO*O; the attention kernel (dQ summed in fp32); for 16-bit types dQ is cast at the end.
void add_flash_backward(const Sizes& z, std::vector<Kernel>& kernels) {
  kernels.push_back(stream_kernel(z.compute, z.tokens * z.q, 2, Bytes(z.tokens * (2 * z.q * z.e + 4 * z.a))));
  const std::int64_t read = z.tokens * ((qkv_width(z) + z.q) * z.e + 8 * z.a);
  const std::int64_t written = z.tokens * (2 * z.kv * z.e + 4 * z.q);
  kernels.push_back(flash(z, 10 * z.scores * z.d, read + written));
  if (z.compute != DType::Fp32) kernels.push_back(stream_kernel(z.compute, z.tokens * z.q, 1, Bytes(z.tokens * z.q * (4 + z.e))));
}

// One of the two kinds of matmul around the scores, batched over heads: m x n times k; the tensors' own bytes (KV heads are shared).
Kernel score_matmul(const Sizes& z, std::int64_t n, std::int64_t k, std::int64_t other_bytes) {
  Kernel kernel = matmul_kernel(z.compute, z.b * z.a, z.s, n, k);
  kernel.bytes = Bytes(z.scores * z.e + other_bytes);
  return kernel;
}

void add_plain_forward(const ModelShape& model, const Sizes& z, std::vector<Kernel>& kernels) {
  const std::int64_t q_kv = z.tokens * (z.q + z.kv) * z.e;
  kernels.push_back(score_matmul(z, z.s, z.d, q_kv));  // scores = q k^T
  kernels.push_back(stream_kernel(z.compute, z.scores, kSoftmaxFlops, Bytes(2 * z.scores * z.e)));
  if (has_dropout(model)) kernels.push_back(stream_kernel(z.compute, z.scores, 2, Bytes(z.scores * (2 * z.e + 1))));
  kernels.push_back(score_matmul(z, z.d, z.s, q_kv));  // out = p v
}

void add_plain_backward(const ModelShape& model, const Sizes& z, std::vector<Kernel>& kernels) {
  const std::int64_t q_kv = z.tokens * (z.q + z.kv) * z.e;
  kernels.push_back(score_matmul(z, z.d, z.s, q_kv));  // dv = p^T dO
  kernels.push_back(score_matmul(z, z.s, z.d, q_kv));  // dp = dO v^T
  if (has_dropout(model)) kernels.push_back(stream_kernel(z.compute, z.scores, 2, Bytes(z.scores * (2 * z.e + 1))));
  kernels.push_back(stream_kernel(z.compute, z.scores, kSoftmaxBackwardFlops, Bytes(3 * z.scores * z.e)));
  kernels.push_back(score_matmul(z, z.d, z.s, q_kv));  // dq = ds k
  kernels.push_back(score_matmul(z, z.d, z.s, q_kv));  // dk = ds^T q
}

void set_saved(const ModelShape& model, const Sizes& z, const HalfLayer& half, const WantedGradients& wanted, SegmentCost& cost) {
  const Depth depth = depth_of(model, half, wanted);
  ForwardTensors tensors("attn");
  tensors.add_norm(model, z, depth.norm, wants_weight_of_in(half, wanted));
  SavedSet& for_core = tensors.when(depth.core);
  if (is_gpt(model)) {
    for_core.add("qkv", z.compute, {z.b, z.s, qkv_width(z)});
  } else {
    for_core.add("q", z.compute, {z.b, z.s, z.q});
    for_core.add("k", z.compute, {z.b, z.s, z.kv});
    for_core.add("v", z.compute, {z.b, z.s, z.kv});
  }
  tensors.when(depth.core || wants_weight(wanted, half.out)).add("core.out", z.compute, {z.b, z.s, z.q});
  if (model.flash_attention) {
    for_core.add("lse", DType::Fp32, {z.b, z.a, z.s});
  } else {
    for_core.add("probabilities", z.compute, {z.b, z.a, z.s, z.s});
    if (has_dropout(model)) for_core.add("core.mask", DType::Uint8, {z.b, z.a, z.s, z.s});
    if (has_dropout(model)) for_core.add("core.dropped", z.compute, {z.b, z.a, z.s, z.s});
  }
  if (has_dropout(model)) tensors.when(wanted.any()).add("mask", DType::Uint8, {z.b, z.s, z.h});
  tensors.move_into(cost);
}

// Largest set of transients alive at once. Forward: raw scores beside the probabilities (not flash). Backward: the gradients of the
// core's output and of q, k, v beside flash's fp32 dQ and row sums, or beside the gradients of probabilities and scores.
void set_workspaces(const ModelShape& model, const Sizes& z, const Depth& depth, const WantedGradients& wanted, SegmentCost& cost) {
  const Transient scores{z.scores, z.e};
  if (!model.flash_attention) cost.forward_workspace = transient_bytes({scores});
  std::vector<Transient> core = {{z.tokens * z.q, z.e}, {z.tokens * qkv_width(z), z.e}};
  if (!model.flash_attention) {
    core.insert(core.end(), {scores, scores});
  } else {
    core.push_back({z.tokens * z.a, 4});
    if (z.compute != DType::Fp32) core.push_back({z.tokens * z.q, 4});
  }
  const Bytes after = transient_bytes({{z.tokens * qkv_width(z), z.e}, {z.tokens * z.h, z.e}, {norm_vectors(model) * z.h, 4}});
  if (depth.core) cost.backward_workspace = transient_bytes(core);
  if (depth.norm) cost.backward_workspace = std::max(cost.backward_workspace, after);
  if (has_dropout(model) && wanted.any()) cost.backward_workspace += transient_bytes({{z.tokens * z.h, z.e}});
}

}  // namespace

HalfLayer attention_half(const ModelShape& model, const Sizes& z) {
  HalfLayer half;
  half.name = "attn";
  half.in = projections(model, z);
  half.out = {z.q, z.h, is_gpt(model), "out"};
  if (!is_gpt(model)) half.core_forward.push_back(rope(z));
  if (model.flash_attention) {
    add_flash_forward(z, half.core_forward);
    add_flash_backward(z, half.core_input_grad);
  } else {
    add_plain_forward(model, z, half.core_forward);
    add_plain_backward(model, z, half.core_input_grad);
  }
  if (!is_gpt(model)) half.core_input_grad.push_back(rope(z));
  return half;
}

SegmentCost attention_segment(const ModelShape& model, const Sizes& z, const WantedGradients& wanted) {
  SegmentCost cost;
  const HalfLayer half = attention_half(model, z);
  set_half_layer(model, z, half, wanted, cost);
  set_saved(model, z, half, wanted, cost);
  set_workspaces(model, z, depth_of(model, half, wanted), wanted, cost);
  return cost;
}

}  // namespace steptwin
