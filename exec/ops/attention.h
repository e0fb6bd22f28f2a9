// Causal attention composed of matmuls and a softmax: any type, any device, O(s^2) memory in fp32. The CPU's way, and the GPU's for fp32.
// A .cpp file that includes this header includes ATen first.
#pragma once

#include <array>

#include "exec/ops/parts.h"

namespace steptwin::parts {

struct AttentionTensors {
  at::Tensor q, k, v, core, statistics;  // shapes in parts.h
  enum class Form : std::uint8_t { Flash, Probabilities };
  Form form = Form::Flash;  // what `statistics` holds
  at::Tensor mask, dropped;  // [b, heads, s, s], Form::Probabilities alone: dropout on them, and what it leaves; undefined: none
  double dropout = 0;
};

void composed_attention(const AttentionTensors& t);
std::array<at::Tensor, 3> composed_attention_backward(const AttentionTensors& t, const at::Tensor& d_core);

}  // namespace steptwin::parts
