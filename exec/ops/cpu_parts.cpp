// The parts on the CPU, by LibTorch's functions. Order and rounding of every sum are fixed: equal inputs give equal bits.
#include <ATen/ATen.h>

#include "exec/ops/adam.h"
#include "exec/ops/attention.h"

namespace steptwin::parts {
namespace {

at::Tensor wide(const at::Tensor& t) { return t.to(at::kFloat); }
at::Tensor rows(const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); }

void rms_norm(const at::Tensor& x, const at::Tensor& gain, at::Tensor rstd, at::Tensor out) {
  const at::Tensor inverse = x.square().mean(-1, true).add_(kNormEpsilon).rsqrt_();
  rstd.copy_(inverse.squeeze(-1));
  out.copy_(at::mul(x, inverse).mul_(gain));
}

// With n = x * rstd and g = dy * gain: dx = rstd * (g - n * mean(g * n)), dgain = sum over rows of dy * n.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& rstd, at::Tensor& sums) {
  const at::Tensor inverse = rstd.unsqueeze(-1), normal = at::mul(x, inverse);
  sums = rows(at::mul(dy, normal)).sum(0, true);
  at::Tensor dx = at::mul(dy, gain);
  dx.sub_(at::mul(normal, at::mul(dx, normal).mean(-1, true)));
  return dx.mul_(inverse);
}

at::Tensor layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& mean,
                               const at::Tensor& rstd, at::Tensor& sums) {
  const auto [dx, dgain, dbias] = at::native_layer_norm_backward(dy, x, {x.size(-1)}, mean.unsqueeze(-1), rstd.unsqueeze(-1), gain,
                                                                 at::zeros_like(gain), {true, true, true});
  sums = at::stack({dgain, dbias});
  return dx;
}

}  // namespace

void norm(const at::Tensor& x, const at::Tensor& gain, const at::Tensor& bias, at::Tensor out, at::Tensor mean, at::Tensor rstd) {
  if (!bias.defined()) return rms_norm(wide(x), wide(gain), rstd, out);
  const auto [normal, average, inverse] = at::native_layer_norm(wide(x), {x.size(-1)}, wide(gain), wide(bias), kNormEpsilon);
  out.copy_(normal);
  mean.copy_(average.view(rstd.sizes()));
  rstd.copy_(inverse.view(rstd.sizes()));
}

at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gain, const at::Tensor& mean, const at::Tensor& rstd,
                         const at::Tensor& residual, at::Tensor dx) {
  at::Tensor sums;
  const at::Tensor slope = wide(dy).view(x.sizes());
  const at::Tensor through = mean.defined() ? layer_norm_backward(slope, wide(x), wide(gain), mean, rstd, sums)
                                            : rms_norm_backward(slope, wide(x), wide(gain), rstd, sums);
  dx.copy_(residual.defined() ? at::add(through, residual) : through);
  return sums;
}

void gelu(const at::Tensor& x, at::Tensor out) { out.copy_(at::gelu(wide(x), "tanh")); }
at::Tensor gelu_backward(const at::Tensor& dy, const at::Tensor& x) {
  return at::gelu_backward(wide(dy), wide(x), "tanh").to(dy.scalar_type());
}
void swiglu(const at::Tensor& gate, const at::Tensor& up, at::Tensor out) { out.copy_(at::silu(wide(gate)).mul_(up)); }
std::array<at::Tensor, 2> swiglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up) {
  const at::ScalarType type = dy.scalar_type();
  const at::Tensor d = wide(dy), g = wide(gate);
  return {at::silu_backward(at::mul(d, wide(up)), g).to(type), at::silu(g).mul_(d).to(type)};
}

void rotate(const at::Tensor& t, std::int64_t d, Turn turn) {
  const std::int64_t s = t.size(1);
  const at::TensorOptions real(at::kDouble);
  const at::Tensor frequency = at::pow(at::Scalar(kRopeBase), at::arange(0, d, 2, real).div_(static_cast<double>(-d)));
  const at::Tensor angle = at::outer(at::arange(s, real), frequency).view({s, 1, d / 2});
  const at::Tensor cosine = angle.cos().to(at::kFloat), sine = (turn == Turn::Forward ? angle.sin() : angle.sin().neg_()).to(at::kFloat);
  const at::Tensor pairs = t.view({t.size(0), s, -1, d});
  const at::Tensor low = pairs.narrow(3, 0, d / 2), high = pairs.narrow(3, d / 2, d / 2);
  const at::Tensor wide_low = wide(low), wide_high = wide(high);
  const at::Tensor new_low = at::mul(wide_low, cosine).sub_(at::mul(wide_high, sine));
  const at::Tensor new_high = at::mul(wide_high, cosine).add_(at::mul(wide_low, sine));
  low.copy_(new_low);
  high.copy_(new_high);
}

void attention(const AttentionTensors& t) { composed_attention(t); }
std::array<at::Tensor, 3> attention_backward(const AttentionTensors& t, const at::Tensor& d_core) {
  return composed_attention_backward(t, d_core);
}

// log(sum(exp(score - max))) - (score[target] - max)
void softmax_loss(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& targets, at::Tensor p, at::Tensor loss) {
  if (p.scalar_type() == weight.scalar_type()) {
    at::mm_out(p, rows, weight.t());
  } else {
    p.copy_(at::mm(rows, weight.t()));
  }
  p.sub_(p.amax(-1, true));
  const at::Tensor picked = p.gather(1, targets.unsqueeze(1));
  p.exp_();
  const at::Tensor sum = p.sum(-1, true);
  loss.copy_(sum.log().sub_(picked).mean().view({1}));
  p.div_(sum);
}

at::Tensor softmax_loss_backward(const at::Tensor& softmax, const at::Tensor& targets, double scale, const at::Tensor& like) {
  const at::Tensor index = targets.unsqueeze(1);
  at::Tensor d = softmax.clone();
  d.scatter_add_(1, index, at::full(index.sizes(), -1.0, softmax.options()));
  return d.mul_(scale).to(like.scalar_type());
}

at::Tensor scores_backward(const at::Tensor& d_scores, const at::Tensor& weight) { return at::mm(d_scores, weight); }

void contribute(at::Tensor sum, const at::Tensor& value, Contribution which) {
  if (which == Contribution::First) {
    sum.copy_(value.view(sum.sizes()));
  } else {
    sum.add_(wide(value).view(sum.sizes()));  // a 16-bit sum is promoted, added in fp32 and rounded once
  }
}

void contribute_product(at::Tensor sum, const at::Tensor& dy, const at::Tensor& x, Contribution which) {
  contribute(sum, at::mm(dy.t(), x), which);
}

}  // namespace steptwin::parts

namespace steptwin {

void adam_on_device(const AdamBuffers& buffers, AdamFactors factors) { adam_on_host(buffers, factors); }

}  // namespace steptwin
