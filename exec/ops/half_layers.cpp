// The two halves of a transformer layer, y = x + out(core(in(norm(x)))): attention and MLP of both families.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "exec/ops/segments.h"

namespace steptwin {
namespace {

constexpr double kRopeBase = 10000;

// Names of a half's projections, and of the saved tensors that hold their outputs and the core's output.
struct HalfForm {
  std::vector<std::string> in, in_saved;
  std::string out, core_saved;
};

HalfForm form_of(Half half, const Operands& operands, const BoundAccess& weights) {
  if (half == Half::Attention) {
    if (operands.has(weights, "qkv.weight")) return {{"qkv"}, {"qkv"}, "out", "core.out"};
    return {{"q", "k", "v"}, {"q", "k", "v"}, "out", "core.out"};
  }
  if (operands.has(weights, "gate.weight")) return {{"gate", "up"}, {"gate", "up"}, "down", "product"};
  return {{"up"}, {"pre_gelu"}, "down", "gelu"};
}

// Everything of an op by name, and the tensors that backward hands from its input-gradient to its weight-gradient half.
class HalfLayer {
 public:
  HalfLayer(Half half, Operands& operands, const BoundAccess& x, const BoundAccess& param, const BoundAccess& saved)
      : half_(half), operands_(operands), param_(param), saved_(saved), form_(form_of(half, operands, param)) {
    if (operands.has(saved, "mask")) operands.fail("dropout is not executed", "set model.dropout to 0");
    x_ = tensor_at(operands, operands.only_tensor(x));
  }
  void forward(const BoundAccess& y);
  struct WeightInputs {
    at::Tensor norm_out, core, dy, sums;
    std::vector<at::Tensor> in;  // gradients of the input projections' outputs
  };
  WeightInputs backward(const BoundAccess& dy, const BoundAccess& dx);

 private:
  at::Tensor saved(const std::string& name) const { return tensor_at(operands_, operands_.tensor(saved_, name)); }
  at::Tensor weight(const std::string& name) const { return tensor_at(operands_, operands_.tensor(param_, name + ".weight")); }
  void project(const std::string& name, const at::Tensor& rows, at::Tensor out) const;
  void gelu_or_swiglu() const;
  std::vector<at::Tensor> gelu_or_swiglu_backward(const at::Tensor& d_core) const;

  Half half_;
  Operands& operands_;
  const BoundAccess& param_;
  const BoundAccess& saved_;
  HalfForm form_;
  at::Tensor x_;
};

// Causal attention over grouped heads. Query heads that share a key head are stacked in one matmul: [b*kv, group*s, d].
class Attention {
 public:
  Attention(const Operands& operands, const BoundAccess& saved);
  void forward();
  std::vector<at::Tensor> backward(const at::Tensor& d_core);  // [dq, dk, dv] or [dqkv], rows

 private:
  at::Tensor query_heads(const at::Tensor& t) const;  // [b, s, q] -> [b*kv, group*s, d]
  at::Tensor key_heads(const at::Tensor& t) const;    // [b, s, kv*d] -> [b*kv, s, d]
  at::Tensor from_query_heads(const at::Tensor& t) const;
  at::Tensor from_key_heads(const at::Tensor& t) const;
  at::Tensor scores() const;         // fp32 [b, a, s, s], scaled, -inf above the diagonal
  at::Tensor probabilities() const;  // fp32, as forward made them, from what is saved
  at::Tensor stacked(const at::Tensor& scores) const { return scores.view({b_ * kv_, group_ * s_, s_}); }

  at::Tensor q_, k_, v_, core_, statistics_;  // statistics: lse (flash) or probabilities
  bool packed_ = false, flash_ = false;
  std::int64_t b_ = 0, s_ = 0, heads_ = 0, d_ = 0, kv_ = 0, group_ = 0;
  double scale_ = 1;
};

Attention::Attention(const Operands& operands, const BoundAccess& saved) {
  const auto get = [&](const char* name) { return tensor_at(operands, operands.tensor(saved, name)); };
  core_ = get("core.out");
  flash_ = operands.has(saved, "lse");
  statistics_ = get(flash_ ? "lse" : "probabilities");
  packed_ = operands.has(saved, "qkv");
  b_ = core_.size(0), s_ = core_.size(1), heads_ = statistics_.size(1), d_ = core_.size(2) / heads_;
  if (packed_) {
    const at::Tensor qkv = get("qkv");
    const std::int64_t q = core_.size(2), kv = (qkv.size(2) - q) / 2;
    q_ = qkv.narrow(2, 0, q), k_ = qkv.narrow(2, q, kv), v_ = qkv.narrow(2, q + kv, kv);
  } else {
    q_ = get("q"), k_ = get("k"), v_ = get("v");
  }
  kv_ = k_.size(2) / d_;
  group_ = kv_ > 0 ? heads_ / kv_ : 0;
  if (d_ * heads_ != core_.size(2) || group_ * kv_ != heads_) operands.fail("its heads do not divide the widths of q, k and v");
  scale_ = 1.0 / std::sqrt(static_cast<double>(d_));
}

at::Tensor Attention::query_heads(const at::Tensor& t) const {
  return t.view({b_, s_, kv_, group_, d_}).permute({0, 2, 3, 1, 4}).reshape({b_ * kv_, group_ * s_, d_});
}
at::Tensor Attention::key_heads(const at::Tensor& t) const {
  return t.view({b_, s_, kv_, d_}).permute({0, 2, 1, 3}).reshape({b_ * kv_, s_, d_});
}
at::Tensor Attention::from_query_heads(const at::Tensor& t) const {
  return t.view({b_, kv_, group_, s_, d_}).permute({0, 3, 1, 2, 4}).reshape({b_, s_, heads_ * d_});
}
at::Tensor Attention::from_key_heads(const at::Tensor& t) const {
  return t.view({b_, kv_, s_, d_}).permute({0, 2, 1, 3}).reshape({b_, s_, kv_ * d_});
}

at::Tensor Attention::scores() const {
  at::Tensor scores = to_fp32(at::bmm(query_heads(q_), key_heads(k_).transpose(1, 2))).view({b_, heads_, s_, s_});
  const at::Tensor future = at::ones({s_, s_}, at::TensorOptions(at::kBool)).triu(1);
  return scores.mul_(scale_).masked_fill_(future, -std::numeric_limits<double>::infinity());
}

void Attention::forward() {
  at::Tensor p = scores();
  const at::Tensor top = p.amax(-1, true);
  p.sub_(top).exp_();
  const at::Tensor sum = p.sum(-1, true);
  p.div_(sum);
  if (flash_) {
    statistics_.copy_(sum.log().add_(top).squeeze(-1));
  } else {
    statistics_.copy_(p);
  }
  core_.copy_(from_query_heads(at::bmm(stacked(p).to(core_.scalar_type()), key_heads(v_))));
}

at::Tensor Attention::probabilities() const {
  if (!flash_) return to_fp32(statistics_);
  return scores().sub_(statistics_.unsqueeze(-1)).exp_();
}

// ds = p * (dp - rowsum(dO * O)); without dropout the row sum equals that of dp * p.
std::vector<at::Tensor> Attention::backward(const at::Tensor& d_core) {
  const at::ScalarType type = core_.scalar_type();
  const at::Tensor p = stacked(probabilities()), d_out = query_heads(d_core.view(core_.sizes()));
  const at::Tensor row_sum = at::mul(to_fp32(d_out), to_fp32(query_heads(core_))).sum(-1, true);
  const at::Tensor dv = at::bmm(p.to(type).transpose(1, 2), d_out);
  at::Tensor ds = to_fp32(at::bmm(d_out, key_heads(v_).transpose(1, 2)));
  ds = ds.sub_(row_sum).mul_(p).mul_(scale_).to(type);
  const at::Tensor dq = from_query_heads(at::bmm(ds, key_heads(k_))), dk = from_key_heads(at::bmm(ds.transpose(1, 2), query_heads(q_)));
  if (packed_) return {at::cat({dq, dk, from_key_heads(dv)}, -1)};
  return {dq, dk, from_key_heads(dv)};
}

enum class Turn : std::uint8_t { Forward, Back };

// Rotates the pairs (i, i + d/2) of every head of t [b, s, heads*d] in place by position * 10000^(-2i/d); back: the inverse.
void rotate(const Operands& operands, const at::Tensor& t, std::int64_t d, Turn turn) {
  if (d % 2 != 0) operands.fail(fmt::format("RoPE needs an even head size, it is {}", d));
  const std::int64_t s = t.size(1);
  const at::TensorOptions real(at::kDouble);
  const at::Tensor frequency = at::pow(at::Scalar(kRopeBase), at::arange(0, d, 2, real).div_(static_cast<double>(-d)));
  const at::Tensor angle = at::outer(at::arange(s, real), frequency).view({s, 1, d / 2});
  const at::Tensor cosine = angle.cos().to(at::kFloat), sine = (turn == Turn::Forward ? angle.sin() : angle.sin().neg_()).to(at::kFloat);
  const at::Tensor pairs = t.view({t.size(0), s, -1, d});
  const at::Tensor low = pairs.narrow(3, 0, d / 2), high = pairs.narrow(3, d / 2, d / 2);
  const at::Tensor wide_low = to_fp32(low), wide_high = to_fp32(high);
  const at::Tensor new_low = at::mul(wide_low, cosine).sub_(at::mul(wide_high, sine));
  const at::Tensor new_high = at::mul(wide_high, cosine).add_(at::mul(wide_low, sine));
  low.copy_(new_low);
  high.copy_(new_high);
}

void rotate_query_and_key(const Operands& operands, const at::Tensor& q, const at::Tensor& k, std::int64_t d, Turn turn) {
  rotate(operands, q, d, turn);
  rotate(operands, k, d, turn);
}

std::int64_t head_size(const Operands& operands, const BoundAccess& saved) {
  const char* statistics = operands.has(saved, "lse") ? "lse" : "probabilities";
  return operands.tensor(saved, "core.out").shape[2] / operands.tensor(saved, statistics).shape[1];
}

void HalfLayer::project(const std::string& name, const at::Tensor& rows, at::Tensor out) const {
  if (operands_.has(param_, name + ".bias")) {
    at::addmm_out(out, tensor_at(operands_, operands_.tensor(param_, name + ".bias")), rows, weight(name).t());
  } else {
    at::mm_out(out, rows, weight(name).t());
  }
}

void HalfLayer::gelu_or_swiglu() const {
  at::Tensor core = saved(form_.core_saved);
  const at::Tensor first = to_fp32(saved(form_.in_saved[0]));
  core.copy_(form_.in.size() == 1 ? at::gelu(first, "tanh") : at::silu(first).mul_(saved(form_.in_saved[1])));
}

std::vector<at::Tensor> HalfLayer::gelu_or_swiglu_backward(const at::Tensor& d_core) const {
  const at::ScalarType type = d_core.scalar_type();
  const at::Tensor d = to_fp32(d_core), first = to_fp32(rows_of(saved(form_.in_saved[0])));
  if (form_.in.size() == 1) return {at::gelu_backward(d, first, "tanh").to(type)};
  const at::Tensor up = to_fp32(rows_of(saved(form_.in_saved[1])));
  return {at::silu_backward(at::mul(d, up), first).to(type), at::silu(first).mul_(d).to(type)};
}

void HalfLayer::forward(const BoundAccess& y) {
  const at::Tensor normal = rows_of(norm_forward(operands_, x_, param_, saved_));
  for (std::size_t i = 0; i < form_.in.size(); ++i) project(form_.in[i], normal, rows_of(saved(form_.in_saved[i])));
  if (half_ == Half::Mlp) {
    gelu_or_swiglu();
  } else {
    if (form_.in.size() == 3) rotate_query_and_key(operands_, saved("q"), saved("k"), head_size(operands_, saved_), Turn::Forward);
    Attention(operands_, saved_).forward();
  }
  at::Tensor out = tensor_at(operands_, operands_.only_tensor(y));
  project(form_.out, rows_of(saved(form_.core_saved)), rows_of(out));
  out.add_(x_);
}

HalfLayer::WeightInputs HalfLayer::backward(const BoundAccess& dy, const BoundAccess& dx) {
  WeightInputs inputs;
  const at::Tensor slope = tensor_at(operands_, operands_.only_tensor(dy));
  inputs.dy = rows_of(slope);
  inputs.norm_out = rows_of(saved("norm.out"));
  inputs.core = rows_of(saved(form_.core_saved));
  const at::Tensor d_core = at::mm(inputs.dy, weight(form_.out));
  inputs.in = half_ == Half::Mlp ? gelu_or_swiglu_backward(d_core) : Attention(operands_, saved_).backward(d_core);
  if (inputs.in.size() == 3) rotate_query_and_key(operands_, inputs.in[0], inputs.in[1], head_size(operands_, saved_), Turn::Back);
  at::Tensor d_norm;
  for (std::size_t i = 0; i < inputs.in.size(); ++i) {
    inputs.in[i] = rows_of(inputs.in[i]);
    const at::Tensor part = at::mm(inputs.in[i], weight(form_.in[i]));
    d_norm = i == 0 ? part : d_norm.add_(part);
  }
  const at::Tensor through_norm = norm_backward(operands_, d_norm, x_, param_, saved_, inputs.sums);
  tensor_at(operands_, operands_.only_tensor(dx)).copy_(at::add(through_norm, slope));
  return inputs;
}

void linear_weight_grad(const Operands& operands, const BoundAccess& gradient, const std::string& name, const at::Tensor& dy,
                        const at::Tensor& x) {
  contribute(operands, gradient, operands.tensor(gradient, name + ".weight"), at::mm(dy.t(), x));
  if (operands.has(gradient, name + ".bias"))
    contribute(operands, gradient, operands.tensor(gradient, name + ".bias"), dy.sum({0}, false, at::kFloat));
}

void weight_grads(Half half, const Operands& operands, const BoundAccess& gradient, const HalfLayer::WeightInputs& inputs) {
  const HalfForm form = form_of(half, operands, gradient);
  linear_weight_grad(operands, gradient, form.out, inputs.dy, inputs.core);
  for (std::size_t i = 0; i < form.in.size(); ++i) linear_weight_grad(operands, gradient, form.in[i], inputs.in[i], inputs.norm_out);
  contribute_norm(operands, gradient, inputs.sums);
}

// Operands of B and I up to dx.
HalfLayer::WeightInputs input_grad(Half half, Operands& operands) {
  const BoundAccess& dy = operands.read("dy");
  const BoundAccess& saved = operands.read("S");
  const BoundAccess& x = operands.read("x");
  const BoundAccess& param = operands.read("P");
  return HalfLayer(half, operands, x, param, saved).backward(dy, operands.write("dx"));
}

HalfLayer::WeightInputs unpack(Half half, const Operands& operands, const BoundAccess& kept, const BoundAccess& gradient) {
  if (operands.work().kernels.empty()) operands.fail("its work has no kernels; the weight gradient takes its shapes from it");
  const Kernel& kernel = operands.work().kernels.front();  // the output projection: k = tokens
  const HalfForm form = form_of(half, operands, gradient);
  const auto shape = [&](const std::string& name) { return operands.tensor(gradient, name + ".weight").shape; };
  const std::int64_t tokens = kernel.k, hidden = shape(form.out)[0];
  KeptTensors k(operands, kept);
  HalfLayer::WeightInputs inputs;
  inputs.norm_out = k.get(kernel.dtype, tokens, hidden);
  inputs.core = k.get(kernel.dtype, tokens, shape(form.out)[1]);
  inputs.dy = k.get(kernel.dtype, tokens, hidden);
  for (const std::string& name : form.in) inputs.in.push_back(k.get(kernel.dtype, tokens, shape(name)[0]));
  inputs.sums = k.get(DType::Fp32, operands.has(gradient, "norm.bias") ? 2 : 1, hidden);
  return inputs;
}

}  // namespace

void half_layer_forward(Half half, Operands& operands) {
  const BoundAccess& x = operands.read("x");
  const BoundAccess& param = operands.read("P");
  const BoundAccess& saved = operands.write("S");
  HalfLayer(half, operands, x, param, saved).forward(operands.write("y"));
  operands.finish();
}

void half_layer_backward(Half half, Operands& operands) {
  const HalfLayer::WeightInputs inputs = input_grad(half, operands);
  weight_grads(half, operands, operands.gradient("G"), inputs);
  operands.finish();
}

void half_layer_input_grad(Half half, Operands& operands) {
  const HalfLayer::WeightInputs inputs = input_grad(half, operands);
  KeptTensors k(operands, operands.write("K"));
  for (const at::Tensor& t : {inputs.norm_out, inputs.core, inputs.dy}) k.put(t);
  for (const at::Tensor& t : inputs.in) k.put(t);
  k.put(inputs.sums);
  operands.finish();
}

void half_layer_weight_grad(Half half, Operands& operands) {
  const BoundAccess& kept = operands.read("K");
  const BoundAccess& gradient = operands.gradient("G");
  weight_grads(half, operands, gradient, unpack(half, operands, kept, gradient));
  operands.finish();
}

}  // namespace steptwin
