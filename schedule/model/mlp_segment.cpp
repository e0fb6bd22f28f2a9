// The MLP half of a layer.
//
// Kept from forward to backward:
//   tensor       shape, type         when        who reads it in backward
//   (input x)    [b,s,h]  compute    always      norm backward; a buffer of its own (keeps_input)
//   norm.mean    [b,s]    fp32       LayerNorm   norm backward
//   norm.rstd    [b,s]    fp32       always      norm backward
//   norm.out     [b,s,h]  compute    always      dW of the input projection(s)
//   pre_gelu     [b,s,f]  compute    GPT         GELU backward
//   gelu         [b,s,f]  compute    GPT         dW of the output projection
//   gate, up     [b,s,f]  compute    Llama       SwiGLU backward
//   product      [b,s,f]  compute    Llama       dW of the output projection (silu(gate) * up)
//   mask         [b,s,h]  uint8      dropout     dropout on the output projection
// "always" is: where all gradients are wanted (see attention_segment.cpp).
#include <algorithm>

#include "schedule/model/segments.h"

namespace steptwin {
namespace {

constexpr std::int64_t kGeluFlops = 10;    // tanh form
constexpr std::int64_t kSwigluFlops = 6;   // sigmoid and two products
constexpr std::int64_t kBackwardFactor = 2;

void set_saved(const ModelShape& model, const Sizes& z, const HalfLayer& half, const WantedGradients& wanted, SegmentCost& cost) {
  const Depth depth = depth_of(model, half, wanted);
  const bool gpt = model.family == Family::Gpt;
  ForwardTensors tensors("mlp");
  tensors.add_norm(model, z, depth.norm, wants_weight_of_in(half, wanted));
  using Names = std::vector<const char*>;
  for (const char* name : gpt ? Names{"pre_gelu"} : Names{"gate", "up"}) tensors.when(depth.core).add(name, z.compute, {z.b, z.s, z.f});
  tensors.when(wants_weight(wanted, half.out)).add(gpt ? "gelu" : "product", z.compute, {z.b, z.s, z.f});
  if (model.dropout > 0) tensors.when(wanted.any()).add("mask", DType::Uint8, {z.b, z.s, z.h});
  tensors.move_into(cost);
}

// Backward: the gradients of the activation's output and of its input(s); later the inputs' and the norm output's.
void set_workspace(const ModelShape& model, const Sizes& z, const HalfLayer& half, const WantedGradients& wanted, SegmentCost& cost) {
  const Depth depth = depth_of(model, half, wanted);
  const Transient wide{z.tokens * z.f, z.e}, narrow{z.tokens * z.h, z.e};
  std::vector<Transient> activation(half.in.size() + 1, wide), after(half.in.size(), wide);
  after.push_back(narrow);
  after.push_back({norm_vectors(model) * z.h, 4});
  if (depth.core) cost.backward_workspace = transient_bytes(activation);
  if (depth.norm) cost.backward_workspace = std::max(cost.backward_workspace, transient_bytes(after));
  if (model.dropout > 0 && wanted.any()) cost.backward_workspace += transient_bytes({narrow});
}

}  // namespace

HalfLayer mlp_half(const ModelShape& model, const Sizes& z) {
  HalfLayer half;
  half.name = "mlp";
  const std::int64_t elements = z.tokens * z.f;
  if (model.family == Family::Gpt) {
    half.in = {{z.h, z.f, true, "up"}};
    half.core_forward = {stream_kernel(z.compute, elements, kGeluFlops, Bytes(2 * elements * z.e))};
    half.core_input_grad = {stream_kernel(z.compute, elements, kBackwardFactor * kGeluFlops, Bytes(3 * elements * z.e))};
    half.out = {z.f, z.h, true, "down"};
  } else {
    half.in = {{z.h, z.f, false, "gate"}, {z.h, z.f, false, "up"}};
    half.core_forward = {stream_kernel(z.compute, elements, kSwigluFlops, Bytes(3 * elements * z.e))};
    half.core_input_grad = {stream_kernel(z.compute, elements, kBackwardFactor * kSwigluFlops, Bytes(5 * elements * z.e))};
    half.out = {z.f, z.h, false, "down"};
  }
  return half;
}

SegmentCost mlp_segment(const ModelShape& model, const Sizes& z, const WantedGradients& wanted) {
  SegmentCost cost;
  const HalfLayer half = mlp_half(model, z);
  set_half_layer(model, z, half, wanted, cost);
  set_saved(model, z, half, wanted, cost);
  set_workspace(model, z, half, wanted, cost);
  return cost;
}

}  // namespace steptwin
