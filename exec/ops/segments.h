// The four segments on bound operands (private to exec/ops; run_compute is the door). The tensors are LibTorch's: a .cpp file that includes
// this header includes ATen first.
//
// Choices: LayerNorm and RMSNorm eps 1e-5, statistics in fp32; GELU in its tanh form; RoPE base 10000 on the two halves of a head
// (element i with i + d/2), angles in double; query head i reads key head i / (heads / kv_heads); scores scaled by 1/sqrt(d).
// A 16-bit type rounds what a matmul, a norm, an activation or a softmax hands on; inside them sums are fp32.
//
// K, what W needs behind I, is packed at 512-byte steps in this order (the sum is the model's kept_for_weight_grad):
//   attn, mlp  norm.out, input of the output projection, dy, gradients of the input projections' outputs, norm sums (fp32)
//   head       norm.out, gradient of the logits, norm sums (fp32)
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
// Writes dx, plus `residual` where it is defined; returns sums (parts.h).
at::Tensor segment_norm_backward(const Operands& operands, const at::Tensor& dy, const at::Tensor& x, const BoundAccess& param,
                                 const BoundAccess& saved, const at::Tensor& residual, at::Tensor dx);
parts::Contribution which_of(const BoundAccess& gradient);  // a micro-batch's contribution: First is a write, Later an update
void contribute_norm(const Operands& operands, const BoundAccess& gradient, const at::Tensor& sums);

// Writes or reads the tensors of K one after the other.
class KeptTensors {
 public:
  KeptTensors(const Operands& operands, const BoundAccess& kept) : operands_(operands), kept_(kept) {}
  void put(const at::Tensor& value);
  at::Tensor get(DType dtype, std::int64_t rows, std::int64_t columns);

 private:
  std::byte* advance(std::int64_t bytes);

  const Operands& operands_;
  const BoundAccess& kept_;
  std::int64_t end_ = 0;
};

}  // namespace steptwin
