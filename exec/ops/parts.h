// What the segments are made of beside matmuls and lookups: norms, activations, rotation, attention, softmax with loss, gradient sums.
// One implementation per device, chosen at link time: exec/ops/cpu_parts.cpp (LibTorch's own functions), exec/cuda/cuda_parts.cpp
// (kernels of exec/cuda/kernels.cu). Tensors are views of the operands; outputs are written in place, no copy is left behind.
// Private to exec: a .cpp file that includes this header includes ATen first.
//
// x, y, dx, dy: [.., h] or rows [n, h] of the compute type; mean, rstd: fp32, one per row; sums: fp32 [1 or 2, h], gradients of the norm's
// gain and, for LayerNorm, of its bias, summed over rows. Inside, everything is fp32.
#pragma once

#include <array>
#include <cstdint>

namespace at {
class Tensor;
}

namespace steptwin::parts {

inline constexpr double kNormEpsilon = 1e-5;
inline constexpr double kRopeBase = 10000;

// ---- norms. An undefined bias (and mean) means RMSNorm.
void norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias, at::Tensor out, at::Tensor mean, at::Tensor rstd);
// dx = gradient through the norm, plus `residual` where it is defined. Returns sums.
at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& mean, const at::Tensor& rstd,
                         const at::Tensor& residual, at::Tensor dx);

// ---- activations
void gelu(const at::Tensor& x, at::Tensor out);  // tanh form
at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x);
void swiglu(const at::Tensor& gate, const at::Tensor& up, at::Tensor out);  // silu(gate) * up
std::array<at::Tensor, 2> swiglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up);  // {dgate, dup}

// ---- attention
// Rotates the pairs (i, i + d/2) of every head of t [b, s, heads * d] in place by position * 10000^(-2i/d); Back: the inverse.
enum class Turn : std::uint8_t { Forward, Back };
void rotate(const at::Tensor& t, std::int64_t d, Turn turn);

// Causal attention, scores scaled by 1/sqrt(d). q [b, s, heads, d], k and v [b, s, kv, d], core (the output) like q; views whose last
// dimension is dense. statistics, what backward needs: lse [b, heads, s] (Flash) or probabilities [b, heads, s, s]; fp32.
struct AttentionTensors;  // exec/ops/attention.h
void attention(const AttentionTensors& t);
std::array<at::Tensor, 3> attention_backward(const AttentionTensors& t, const at::Tensor& d_core);  // {dq, dk, dv}, shapes of q, k, v

// ---- head
// softmax [n, V] fp32 = softmax of the scores rows [n, h] weight[V, h]^T; loss [1] = mean over rows of -log softmax[target].
void softmax_loss(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& targets, at::Tensor softmax, at::Tensor loss);
// Gradient of the scores: (softmax - one_hot(target)) * scale, of the type of `like`; its rows may lie apart.
at::Tensor softmax_loss_backward(const at::Tensor& softmax, const at::Tensor& targets, double scale, const at::Tensor& like);
// Gradient of `rows`: d_scores weight.
at::Tensor scores_backward(const at::Tensor& d_scores, const at::Tensor& weight);

// ---- gradients: the step's first contribution is written, later ones are added (in fp32, rounded once to the sum's type).
enum class Contribution : std::uint8_t { First, Later };
void contribute(at::Tensor sum, const at::Tensor& value, Contribution which);
// contribute(sum, dy^T x): weight gradient of a linear layer. dy [n, out], x [n, in], sum [out, in].
void contribute_product(at::Tensor sum, const at::Tensor& dy, const at::Tensor& x, Contribution which);

}  // namespace steptwin::parts
