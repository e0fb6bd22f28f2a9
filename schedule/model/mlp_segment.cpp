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
#include <algorithm>

#include "schedule/model/segments.h"

namespace steptwin {
namespace {

constexpr std::int64_t kGeluFlops = 10;    // tanh form
constexpr std::int64_t kSwigluFlops = 6;   // sigmoid and two products
constexpr std::int64_t kBackwardFactor = 2;

HalfLayer half_layer(const ModelShape& model, const Sizes& z) {
  HalfLayer half;
  const std::int64_t elements = z.tokens * z.f;
  if (model.family == Family::Gpt) {
    half.in = {{z.h, z.f, true}};
    half.core_forward = {stream_kernel(z.compute, elements, kGeluFlops, Bytes(2 * elements * z.e))};
    half.core_input_grad = {stream_kernel(z.compute, elements, kBackwardFactor * kGeluFlops, Bytes(3 * elements * z.e))};
    half.out = {z.f, z.h, true};
  } else {
    half.in = {{z.h, z.f, false}, {z.h, z.f, false}};
    half.core_forward = {stream_kernel(z.compute, elements, kSwigluFlops, Bytes(3 * elements * z.e))};
    half.core_input_grad = {stream_kernel(z.compute, elements, kBackwardFactor * kSwigluFlops, Bytes(5 * elements * z.e))};
    half.out = {z.f, z.h, false};
  }
  return half;
}

void set_saved(const ModelShape& model, const Sizes& z, SegmentCost& cost) {
  SavedSet saved("mlp.saved");
  saved.add_norm(model, z);
  using Names = std::vector<const char*>;
  const Names names = model.family == Family::Gpt ? Names{"pre_gelu", "gelu"} : Names{"gate", "up", "product"};
  for (const char* name : names) saved.add(name, z.compute, {z.b, z.s, z.f});
  if (model.dropout > 0) saved.add("mask", DType::Uint8, {z.b, z.s, z.h});
  saved.move_into(cost);
}

// Backward: the gradients of the activation's output and of its input(s); later the inputs' and the norm output's.
void set_workspace(const ModelShape& model, const Sizes& z, std::int64_t inputs, SegmentCost& cost) {
  const Transient wide{z.tokens * z.f, z.e}, narrow{z.tokens * z.h, z.e};
  std::vector<Transient> activation(static_cast<std::size_t>(inputs + 1), wide);
  std::vector<Transient> after(static_cast<std::size_t>(inputs), wide);
  after.push_back(narrow);
  after.push_back({norm_vectors(model) * z.h, 4});
  const Bytes masked = model.dropout > 0 ? transient_bytes({narrow}) : Bytes(0);
  cost.backward_workspace = std::max(transient_bytes(activation), transient_bytes(after)) + masked;
}

}  // namespace

SegmentCost mlp_segment(const ModelShape& model, const Sizes& z) {
  SegmentCost cost;
  const HalfLayer half = half_layer(model, z);
  set_half_layer(model, z, half, cost);
  set_saved(model, z, cost);
  set_workspace(model, z, static_cast<std::int64_t>(half.in.size()), cost);
  return cost;
}

}  // namespace steptwin
