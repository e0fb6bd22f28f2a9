// Adam (Kingma and Ba 2015, algorithm 1), without weight decay, on a segment's whole buffers or shards. fp32 arithmetic element by element, + - * /
// and sqrt only: equal inputs give equal bits wherever they lie, so copies of a tied table stay equal.
#pragma once

#include <cstddef>
#include <cstdint>

#include "schedule/base/dtype.h"

namespace steptwin {

// Defaults of the paper and of every framework.
inline constexpr double kAdamLearningRate = 1e-3;
inline constexpr double kAdamBeta1 = 0.9;
inline constexpr double kAdamBeta2 = 0.999;
inline constexpr double kAdamEpsilon = 1e-8;

// A buffer of parameters: its layout is packed and of one type.
struct FlatBuffer {
  std::byte* data = nullptr;
  DType type = DType::Fp32;
  std::int64_t elements = 0;
  std::byte* at(std::int64_t element) const { return data + element * size_of(type); }
};

struct AdamBuffers {
  FlatBuffer gradient, param, weight, first, second;  // equally long. weight: the master, or the parameter itself
};

struct AdamFactors {
  float step_size = 0, second_correction = 0;  // lr / (1 - beta1^t); 1 / (1 - beta2^t)
};

// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= step_size * m / (sqrt(v * second_correction) + eps); param = w, rounded.
void adam_on_host(const AdamBuffers& buffers, AdamFactors factors);
void adam_on_device(const AdamBuffers& buffers, AdamFactors factors);  // of the module: exec/cuda/cuda_parts.cpp; on the CPU the host's

}  // namespace steptwin
