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
};
Kernel linear_forward(const Sizes& z, const Linear& linear);      // bias in the matmul's epilogue
Kernel linear_input_grad(const Sizes& z, const Linear& linear);   // dx = dy w
void add_linear_weight_grad(const Sizes& z, const Linear& linear, Work& work);  // dw += x^T dy, db += sum(dy), in place at z.gradient

// LayerNorm (GPT) or RMSNorm (Llama).
Kernel norm_forward(const ModelShape& model, const Sizes& z);
Kernel norm_input_grad(const ModelShape& model, const Sizes& z);   // dx, and this micro-batch's gain (and bias) sums in fp32
Kernel norm_weight_grad(const ModelShape& model, const Sizes& z);  // adds the sums to the gradient
std::int64_t norm_vectors(const ModelShape& model);                // 2: gain and bias; 1: gain
Bytes norm_sums_bytes(const ModelShape& model, const Sizes& z);

// A layout packed at 512-byte steps: the block size of device allocators, enough for every vector load.
inline constexpr std::int64_t kTensorAlignment = 512;
constexpr std::int64_t align_tensor(std::int64_t bytes) { return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment; }

class SavedSet {
 public:
  explicit SavedSet(std::string name) { layout_.name = std::move(name); }
  void add(std::string name, DType type, std::vector<std::int64_t> shape);
  void add_norm(const ModelShape& model, const Sizes& z);  // statistics and output of the segment's norm
  void move_into(SegmentCost& cost);                       // sets saved and saved_bytes

 private:
  Layout layout_;
  std::int64_t end_ = 0;
};

// Bytes of tensors that live at the same time, each aligned: {elements, element size}.
struct Transient {
  std::int64_t elements = 0, size = 0;
};
Bytes transient_bytes(const std::vector<Transient>& tensors);

}  // namespace steptwin
