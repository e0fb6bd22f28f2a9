// The parts on a GPU: own kernels for what is bound by memory, LibTorch for flash attention and the GELU. All on the current stream.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>

#include "exec/cuda/kernels.h"
#include "exec/ops/adam.h"
#include "exec/ops/attention.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

cudaStream_t stream() { return at::cuda::getCurrentCUDAStream().stream(); }

DType dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat: return DType::Fp32;
    case at::kBFloat16: return DType::Bf16;
    case at::kHalf: return DType::Fp16;
    default: throw InternalError("a part was given a tensor of an unknown type");
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

}  // namespace

void product(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (out.scalar_type() == a.scalar_type()) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, out.scalar_type());
  }
}

void norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias, at::Tensor out, at::Tensor mean, at::Tensor rstd) {
  kernels::NormArguments a = norm_arguments(x, gain, mean, rstd);
  a.bias = bytes(bias);
  kernels::norm(a, out.data_ptr(), stream());
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& mean, const at::Tensor& rstd,
                         const at::Tensor& residual, at::Tensor dx) {
  const kernels::NormArguments a = norm_arguments(x, gain, mean, rstd);
  const at::Tensor partial = at::empty({kernels::norm_partial_rows(a.rows), mean.defined() ? 2 : 1, a.width}, x.options().dtype(at::kFloat));
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
  kernels::rotate(dtype_of(t), t.data_ptr(), t.size(0), t.size(1), t.size(2) / d, d, kRopeBase, turn == Turn::Forward ? 1.f : -1.f, stream());
}

// Flash attention takes [b, s, heads, d] views and grouped heads as they are; without dropout its random state is never read.
void attention(const AttentionTensors& t) {
  if (!takes_flash(t)) return composed_attention(t);
  const std::int64_t s = t.q.size(1);
  const auto [out, lse, rng, unused, debug] = at::_flash_attention_forward(t.q, t.k, t.v, std::nullopt, std::nullopt, s, s, 0.0, true, false);
  at::Tensor core = t.core, statistics = t.statistics;
  core.copy_(out);
  statistics.copy_(lse);
}

std::array<at::Tensor, 3> attention_backward(const AttentionTensors& t, const at::Tensor& d_core) {
  if (!takes_flash(t)) return composed_attention_backward(t, d_core);
  const std::int64_t s = t.q.size(1);
  const at::Tensor rng = at::empty({2}, t.q.options().dtype(at::kLong)), unused = at::empty({}, t.q.options().dtype(at::kLong)), none;
  const auto [dq, dk, dv] =
      at::_flash_attention_backward(d_core, t.q, t.k, t.v, t.core, t.statistics, none, none, s, s, 0.0, true, rng, unused);
  return {dq, dk, dv};
}

void softmax_loss(at::Tensor rows, const at::Tensor& targets, at::Tensor loss) {
  const at::Tensor losses = at::empty({rows.size(0)}, rows.options());
  kernels::softmax_loss(floats(rows), rows.size(0), rows.size(1), targets.data_ptr<std::int64_t>(), floats(losses), stream());
  loss.copy_(losses.mean().view({1}));
}

at::Tensor softmax_loss_backward(const at::Tensor& softmax, const at::Tensor& targets, double scale, const at::Tensor& like) {
  at::Tensor out = at::empty(softmax.sizes(), softmax.options().dtype(like.scalar_type()));
  kernels::softmax_loss_backward(dtype_of(out), floats(softmax), softmax.size(0), softmax.size(1), targets.data_ptr<std::int64_t>(),
                                 static_cast<float>(scale), out.data_ptr(), stream());
  return out;
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

void adam_update(const AdamBuffers& b, AdamFactors f) {
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
