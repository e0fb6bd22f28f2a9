// The parts on a GPU: own kernels for what is bound by memory, LibTorch for flash attention and the GELU. All on the current stream.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>

#include "exec/cuda/kernels.h"
#include "exec/ops/adam.h"
#include "exec/ops/attention.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

cudaStream_t stream() { return at::cuda::getCurrentCUDAStream().stream(); }

DType dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return DType::Fp32;
    case at::kBFloat16:
      return DType::Bf16;
    case at::kHalf:
      return DType::Fp16;
    default:
      throw InternalError("a part was given a tensor of an unknown type");
  }
}

float* floats(const at::Tensor& t) { return t.defined() ? t.data_ptr<float>() : nullptr; }
void* bytes(const at::Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; }

}  // namespace

namespace parts {
namespace {

kernels::NormArguments norm_arguments(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& mean, const at::Tensor& rstd) {
  kernels::NormArguments a;
  a.type = dtype_of(x);
  a.width = x.size(-1);
  a.rows = x.numel() / a.width;
  a.epsilon = static_cast<float>(kNormEpsilon);
  a.x = bytes(x), a.gain = bytes(gain);
  a.mean = floats(mean), a.rstd = floats(rstd);
  return a;
}

bool takes_flash(const AttentionTensors& t) { return t.form == AttentionTensors::Form::Flash && t.q.scalar_type() != at::kFloat; }

// cuDNN's flash attention is the faster one on Hopper; eager PyTorch chooses it there too.
bool takes_cudnn(const AttentionTensors& t) {
  return at::cuda::getCurrentDeviceProperties()->major == 9 && t.q.size(3) % 8 == 0 && t.q.size(3) <= 128 && t.q.size(1) > 1;
}
at::Tensor heads_first(const at::Tensor& t) { return t.transpose(1, 2); }  // [b, s, heads, d] <-> [b, heads, s, d]

// cuBLAS multiplies 16-bit matrices five times slower when a dimension is odd (a vocabulary of 50,257; measured on an H200: 6.7 ms against
// 0.84 ms for 4096 x 50257 x 1600, docs/validation/h200.md), so the vocabulary is padded to whole 16 bytes: d_scores by its rows' distance,
// the weight by a copy.
std::int64_t padded(std::int64_t vocabulary, const at::Tensor& like) {
  const auto elements = 16 / static_cast<std::int64_t>(like.element_size());
  return like.scalar_type() == at::kFloat ? vocabulary : (vocabulary + elements - 1) / elements * elements;
}
at::Tensor padded_weight(const at::Tensor& weight) {
  const std::int64_t rows = weight.size(0), all = padded(rows, weight);
  if (all == rows) return weight;
  at::Tensor copy = at::empty({all, weight.size(1)}, weight.options());
  copy.narrow(0, 0, rows).copy_(weight);
  copy.narrow(0, rows, all - rows).zero_();
  return copy;
}
}  // namespace

void norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias, at::Tensor out, at::Tensor mean, at::Tensor rstd) {
  kernels::NormArguments a = norm_arguments(x, gain, mean, rstd);
  a.bias = bytes(bias);
  kernels::norm(a, out.data_ptr(), stream());
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& mean, const at::Tensor& rstd,
                         const at::Tensor& residual, at::Tensor dx) {
  const kernels::NormArguments a = norm_arguments(x, gain, mean, rstd);
  const at::Tensor partial =
      at::empty({kernels::norm_partial_rows(a.rows), mean.defined() ? 2 : 1, a.width}, x.options().dtype(at::kFloat));
  const at::Tensor slope = dy.to(x.scalar_type()).contiguous();
  kernels::norm_backward(a, slope.data_ptr(), bytes(residual), dx.data_ptr(), floats(partial), stream());
  return partial.sum(0);
}

void gelu(const at::Tensor& x, at::Tensor out) { at::gelu_out(out, x, "tanh"); }
at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x) { return at::gelu_backward(dy, x, "tanh"); }

void swiglu(const at::Tensor& gate, const at::Tensor& up, at::Tensor out) {
  kernels::swiglu(dtype_of(gate), gate.numel(), bytes(gate), bytes(up), bytes(out), stream());
}
std::array<at::Tensor, 2> swiglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
  const at::Tensor d = dy.contiguous();
  kernels::swiglu_backward(dtype_of(gate), gate.numel(), bytes(d), bytes(gate), bytes(up), bytes(dgate), bytes(dup), stream());
  return {dgate, dup};
}

void rotate(const at::Tensor& t, std::int64_t d, Turn turn) {
  invariant(t.is_contiguous(), "a rotated tensor is dense");
  kernels::rotate(dtype_of(t), t.data_ptr(), t.size(0), t.size(1), t.size(2) / d, d, kRopeBase, turn == Turn::Forward ? 1.f : -1.f,
                  stream());
}

// Flash attention takes [b, s, heads, d] views and grouped heads as they are; without dropout its random state is never read.
void attention(const AttentionTensors& t) {
  if (!takes_flash(t)) return composed_attention(t);
  const std::int64_t s = t.q.size(1);
  if (takes_cudnn(t)) {
    const auto result =
        at::_scaled_dot_product_cudnn_attention(heads_first(t.q), heads_first(t.k), heads_first(t.v), std::nullopt, true, 0.0, true, false);
    at::Tensor core = t.core, statistics = t.statistics;
    core.copy_(heads_first(std::get<0>(result)));
    statistics.copy_(std::get<1>(result).view(statistics.sizes()));
    return;
  }
  const auto [out, lse, rng, unused, debug] =
      at::_flash_attention_forward(t.q, t.k, t.v, std::nullopt, std::nullopt, s, s, 0.0, true, false);
  at::Tensor core = t.core, statistics = t.statistics;
  core.copy_(out);
  statistics.copy_(lse);
}

std::array<at::Tensor, 3> attention_backward(const AttentionTensors& t, const at::Tensor& d_core) {
  if (!takes_flash(t)) return composed_attention_backward(t, d_core);
  const std::int64_t s = t.q.size(1);
  const at::Tensor rng = at::empty({2}, t.q.options().dtype(at::kLong)), unused = at::empty({}, t.q.options().dtype(at::kLong)), none;
  if (takes_cudnn(t)) {
    const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        heads_first(d_core), heads_first(t.q), heads_first(t.k), heads_first(t.v), heads_first(t.core), t.statistics.unsqueeze(-1), unused,
        unused, none, none, none, s, s, 0.0, true);
    return {heads_first(dq), heads_first(dk), heads_first(dv)};
  }
  const auto [dq, dk, dv] =
      at::_flash_attention_backward(d_core, t.q, t.k, t.v, t.core, t.statistics, none, none, s, s, 0.0, true, rng, unused);
  return {dq, dk, dv};
}

void softmax_loss(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& targets, at::Tensor softmax, at::Tensor loss) {
  const std::int64_t n = rows.size(0), vocabulary = weight.size(0);
  const at::Tensor w = padded_weight(weight);
  at::Tensor scores = weight.scalar_type() == at::kFloat ? softmax : at::empty({n, w.size(0)}, weight.options());
  at::mm_out(scores, rows, w.t());
  const at::Tensor losses = at::empty({n}, softmax.options());
  kernels::softmax_loss(dtype_of(scores), bytes(scores), scores.stride(0), n, vocabulary, targets.data_ptr<std::int64_t>(), floats(softmax),
                        floats(losses), stream());
  loss.copy_(losses.mean().view({1}));
}

at::Tensor softmax_loss_backward(const at::Tensor& softmax, const at::Tensor& targets, double scale, const at::Tensor& like) {
  const std::int64_t n = softmax.size(0), vocabulary = softmax.size(1);
  at::Tensor out = at::empty({n, padded(vocabulary, like)}, like.options());
  kernels::softmax_loss_backward(dtype_of(out), floats(softmax), n, vocabulary, targets.data_ptr<std::int64_t>(), static_cast<float>(scale),
                                 out.data_ptr(), out.stride(0), stream());
  return out.narrow(1, 0, vocabulary);
}

at::Tensor scores_backward(const at::Tensor& d_scores, const at::Tensor& weight) {
  const at::Tensor w = padded_weight(weight);
  if (d_scores.stride(0) != w.size(0)) return at::mm(d_scores, weight);
  return at::mm(d_scores.as_strided({d_scores.size(0), w.size(0)}, d_scores.strides()), w);
}

void contribute(at::Tensor sum, const at::Tensor& value, Contribution which) {
  if (which == Contribution::First) {
    sum.copy_(value.view(sum.sizes()));
  } else {
    sum.add_(value.view(sum.sizes()));  // types promote to fp32 inside the kernel; one rounding at the end
  }
}

// 16-bit factors and an fp32 sum: the product is kept in fp32 from cuBLAS's accumulators on. Equal types: cuBLAS adds in place.
void contribute_product(at::Tensor sum, const at::Tensor& dy, const at::Tensor& x, Contribution which) {
  const at::Tensor left = dy.t();
  if (sum.scalar_type() == dy.scalar_type()) {
    if (which == Contribution::First) {
      at::mm_out(sum, left, x);
    } else {
      at::addmm_out(sum, sum, left, x);
    }
  } else if (which == Contribution::First) {
    at::mm_out(sum, left, x, at::kFloat);
  } else {
    at::addmm_out(sum, sum, left, x, at::kFloat);
  }
}

}  // namespace parts

void adam_on_device(const AdamBuffers& b, AdamFactors f) {
  kernels::AdamArguments a;
  a.n = b.param.elements;
  a.gradient_type = b.gradient.type, a.param_type = b.param.type, a.state_type = b.first.type;
  a.gradient = b.gradient.data, a.param = b.param.data, a.first = b.first.data, a.second = b.second.data;
  if (b.weight.data != b.param.data) {
    invariant(b.weight.type == DType::Fp32, "a master copy is fp32");
    a.master = reinterpret_cast<float*>(b.weight.data);
  }
  a.step_size = f.step_size, a.second_correction = f.second_correction;
  a.beta1 = static_cast<float>(kAdamBeta1), a.beta2 = static_cast<float>(kAdamBeta2), a.epsilon = static_cast<float>(kAdamEpsilon);
  a.rest1 = static_cast<float>(1 - kAdamBeta1), a.rest2 = static_cast<float>(1 - kAdamBeta2);
  kernels::adam(a, stream());
}

}  // namespace steptwin
