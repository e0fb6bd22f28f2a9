// The CUDA kernels of the layers' memory-bound parts, of the in-process collectives and of Adam. Plain pointers and a stream: no torch.
// Rows are dense unless a stride is given. Element types: fp32, bf16 (and fp16 in convert and combine); arithmetic is fp32, one rounding at
// the end. Every function only enqueues; it throws EnvironmentError (Device) when the launch is refused.
#pragma once

#include <cstdint>

#include "exec/cuda/handles.h"
#include "schedule/base/dtype.h"

namespace steptwin::kernels {

struct NormArguments {
  DType type = DType::Fp32;
  std::int64_t rows = 0, width = 0;
  float epsilon = 0;
  const void* x = nullptr;
  const void* gain = nullptr;
  const void* bias = nullptr;  // null: RMSNorm
  float* mean = nullptr;       // null: RMSNorm
  float* rstd = nullptr;
};
void norm(const NormArguments& a, void* out, StreamHandle stream);
// dx = through the norm + residual (null: none). partial: fp32 [norm_partial_rows(rows)][1 or 2][width], summed over its first index by the
// caller.
std::int64_t norm_partial_rows(std::int64_t rows);
void norm_backward(const NormArguments& a, const void* dy, const void* residual, void* dx, float* partial, StreamHandle stream);

void swiglu(DType type, std::int64_t n, const void* gate, const void* up, void* out, StreamHandle stream);
void swiglu_backward(DType type, std::int64_t n, const void* dy, const void* gate, const void* up, void* dgate, void* dup,
                     StreamHandle stream);

// t [batch, s, heads, d] dense; rotates pairs (i, i + d/2); sign -1: the inverse.
void rotate(DType type, void* t, std::int64_t batch, std::int64_t s, std::int64_t heads, std::int64_t d, double base, float sign,
            StreamHandle stream);

// softmax [rows, width] dense fp32 of scores, whose rows lie `stride` elements apart and which may be softmax itself; row_loss [rows] =
// -log softmax[target].
void softmax_loss(DType type, const void* scores, std::int64_t stride, std::int64_t rows, std::int64_t width, const std::int64_t* targets,
                  float* softmax, float* row_loss, StreamHandle stream);
// out: (softmax - one_hot(target)) * scale, rows `stride` elements apart, zeros between them.
void softmax_loss_backward(DType type, const float* softmax, std::int64_t rows, std::int64_t width, const std::int64_t* targets,
                           float scale, void* out, std::int64_t stride, StreamHandle stream);

// Adam as exec/ops/adam.cpp does it, element by element. weight: fp32 master, or null: the parameter itself.
struct AdamArguments {
  std::int64_t n = 0;
  DType gradient_type = DType::Fp32, param_type = DType::Fp32, state_type = DType::Fp32;
  const void* gradient = nullptr;
  void* param = nullptr;
  float* master = nullptr;
  void *first = nullptr, *second = nullptr;
  float step_size = 0, second_correction = 0, beta1 = 0, beta2 = 0, rest1 = 0, rest2 = 0, epsilon = 0;  // rest = 1 - beta
};
void adam(const AdamArguments& a, StreamHandle stream);

void convert(void* to, DType to_type, const void* from, DType from_type, std::int64_t n, StreamHandle stream);

// to[o][i] = sum or maximum over k ascending of from[k][i], for every output o. Outputs may be inputs at the same place.
inline constexpr int kMaxMembers = 16;
struct CombineArguments {
  const void* from[kMaxMembers];
  void* to[kMaxMembers];
  int inputs = 0, outputs = 0;
  std::int64_t n = 0;
  DType type = DType::Fp32;
  bool maximum = false;
};
void combine(const CombineArguments& a, StreamHandle stream);

}  // namespace steptwin::kernels
