// Kernels and saved-set layouts, the vocabulary of the segment descriptions (private to schedule/model).
// flops of stream kernels are element operations, counted roughly: they only matter where a device's vector units are the bound.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/ir/op.h"
#include "schedule/ir/schedule.h"
#include "schedule/model/model.h"

namespace steptwin {

// The sizes of one segment, with short names as in specs/memory.md.
struct Sizes {
  std::int64_t b = 0, s = 0, h = 0, a = 0, f = 0, V = 0;
  std::int64_t q = 0, kv = 0, d = 0;  // widths: q = a*d, kv = k*d
  std::int64_t tokens = 0;            // b*s
  std::int64_t scores = 0;            // b*a*s*s
  std::int64_t e = 0;                 // bytes of the compute type
  DType compute = DType::Bf16, gradient = DType::Fp32;
};
Sizes sizes_of(const ModelShape& model, const BatchShape& batch, DType compute, DType gradient);

// y = x w: [m,k] times [k,n]. Reads both, writes [m,n]; flops 2mnk.
Kernel matmul_kernel(DType type, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k);
Kernel stream_kernel(DType type, std::int64_t elements, std::int64_t flops_per_element, Bytes bytes);

// A dense projection [in] -> [out] of every token.
struct Linear {
  std::int64_t in = 0, out = 0;
  bool bias = false;
  const char* name = "";  // of its parameters: "qkv" has "qkv.weight"
};
// Which of its gradients are wanted.
bool wants_weight(const WantedGradients& wanted, const Linear& linear);
bool wants_bias(const WantedGradients& wanted, const Linear& linear);
Kernel linear_forward(const Sizes& z, const Linear& linear);      // bias in the matmul's epilogue
Kernel linear_input_grad(const Sizes& z, const Linear& linear);   // dx = dy w
// dw += x^T dy, db += sum(dy), in place at z.gradient, as far as they are wanted.
void add_linear_weight_grad(const Sizes& z, const WantedGradients& wanted, const Linear& linear, Work& work);

// LayerNorm (GPT) or RMSNorm (Llama).
Kernel norm_forward(const ModelShape& model, const Sizes& z);
Kernel norm_input_grad(const ModelShape& model, const Sizes& z);   // dx, and this micro-batch's gain (and bias) sums in fp32
Kernel norm_weight_grad(const Sizes& z, std::int64_t vectors);     // adds so many of the sums to their gradients
std::int64_t norm_vectors(const ModelShape& model);                // 2: gain and bias; 1: gain
std::int64_t wanted_norm_vectors(const ModelShape& model, const WantedGradients& wanted);
Bytes norm_sums_bytes(const ModelShape& model, const Sizes& z);

// A layout packed at 512-byte steps: the block size of device allocators, enough for every vector load.
inline constexpr std::int64_t kTensorAlignment = 512;
constexpr std::int64_t align_tensor(std::int64_t bytes) { return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment; }

class SavedSet {
 public:
  explicit SavedSet(std::string name) { layout_.name = std::move(name); }
  void add(std::string name, DType type, std::vector<std::int64_t> shape);
  Bytes bytes() const { return Bytes(end_); }
  Layout layout() && { return std::move(layout_); }

 private:
  Layout layout_;
  std::int64_t end_ = 0;
};

// The tensors that a forward makes: saved for the backward, or passing.
class ForwardTensors {
 public:
  explicit ForwardTensors(const char* segment) : saved_(std::string(segment) + ".saved"), passing_(std::string(segment) + ".passing") {}
  SavedSet& when(bool needed) { return needed ? saved_ : passing_; }
  void add_norm(const ModelShape& model, const Sizes& z, bool statistics, bool output);  // of the segment's norm; which of them are saved
  void move_into(SegmentCost& cost);  // sets saved, passing and their sizes

 private:
  SavedSet saved_, passing_;
};

// Bytes of tensors that live at the same time, each aligned: {elements, element size}.
struct Transient {
  std::int64_t elements = 0, size = 0;
};
Bytes transient_bytes(const std::vector<Transient>& tensors);

}  // namespace steptwin
