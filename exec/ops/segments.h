// The four segments on bound operands (private to exec/ops; run_compute is the door). The tensors are LibTorch's: a .cpp file that includes
// this header includes ATen first.
//
// Choices: LayerNorm and RMSNorm eps 1e-5, statistics in fp32; GELU in its tanh form; RoPE base 10000 on the two halves of a head
// (element i with i + d/2), angles in double; query head i reads key head i / (heads / kv_heads); scores scaled by 1/sqrt(d).
// A 16-bit type rounds what a matmul, a norm, an activation or a softmax hands on; inside them sums are fp32.
//
// Of a backward only the gradients are computed that its operands take: dx where it is written, of parameters those that G and K hold (see
// segment_ops.h). K, what W needs behind I, by the names of its layout (SegmentCost::kept):
//   attn, mlp  norm.out, core.out (input of the output projection), dy, d.NAME (gradients of the input projections' outputs), norm.sums
//   head       norm.out, d.logits, norm.sums
#pragma once

#include "exec/ops/operands.h"
#include "exec/ops/parts.h"

namespace steptwin {

enum class Half : std::uint8_t { Attention, Mlp };

void embedding_forward(Operands& operands);
void embedding_backward(Operands& operands);
void half_layer_forward(Half half, Operands& operands);
void half_layer_backward(Half half, Operands& operands);
void half_layer_input_grad(Half half, Operands& operands);
void half_layer_weight_grad(Half half, Operands& operands);
void head_forward(Operands& operands);
void head_backward(Operands& operands);
void head_input_grad(Operands& operands);
void head_weight_grad(Operands& operands);
void adam(Operands& operands);  // adam.cpp, no torch
void fill(Operands& operands);        // zeros
void check_finite(Operands& operands);  // flag = 1 where a gradient is not finite
void decide(Operands& operands);        // ok = 1 - flag
void inspect(Operands& operands);       // mean, deviation, least, largest of every hidden state of a stack
void add_squares(Operands& operands);   // sum of squares of gradients, without the loss scale
void scale_factor(Operands& operands);  // of clipping and the loss scale
void rescale(Operands& operands);       // the next step's loss scale
void scale(Operands& operands);         // gradients times the factor
void accumulate(Operands& operands);  // adds a gradient shard into a piece of the whole gradients

// Shared parts (tensor_parts.cpp).
at::Tensor tensor_at(const Operands& operands, const TensorView& view);  // no copy
at::Tensor ids_at(const Operands& operands, const BoundAccess& ids);     // flat int64; no copy
at::Tensor to_fp32(const at::Tensor& t);                                 // itself when it is fp32
at::Tensor rows_of(const at::Tensor& t);                                 // [.., n] as [rows, n]; contiguous
// The segment's norm: writes norm.mean (LayerNorm), norm.rstd and norm.out into `saved`; returns norm.out, a view of it.
at::Tensor segment_norm(const Operands& operands, const at::Tensor& x, const BoundAccess& param, const BoundAccess& saved);
// Writes dx, unless it is null, plus `residual` where it is defined; returns sums (parts.h).
at::Tensor segment_norm_backward(const Operands& operands, const at::Tensor& dy, const at::Tensor& x, const BoundAccess& param,
                                 const BoundAccess& saved, const at::Tensor& residual, const BoundAccess* dx);
parts::Contribution which_of(const BoundAccess& gradient);  // a micro-batch's contribution: First is a write, Later an update
void contribute_norm(const Operands& operands, const BoundAccess& gradient, const at::Tensor& sums);
// Whether one of the segment's parameters of this beginning ("norm", "qkv") is among the operand's: those of a gradient are wanted.
bool has_either(const Operands& operands, const BoundAccess* gradient, const std::string& name);

// The operands that all backwards have in common; those that may be missing are null.
struct BackwardOperands {
  const BoundAccess* saved = nullptr;
  const BoundAccess* x = nullptr;
};
BackwardOperands saved_operands(Operands& operands);  // S and x

// Of K: a tensor by its name, undefined where the layout has none, and its copy into it.
at::Tensor kept_tensor(const Operands& operands, const BoundAccess& kept, const std::string& name);
void keep(const Operands& operands, const BoundAccess& kept, const std::string& name, const at::Tensor& value);

}  // namespace steptwin
