// The two halves of a transformer layer, y = x + out(core(in(norm(x)))): attention and MLP of both families.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "exec/ops/attention.h"
#include "exec/ops/segments.h"

namespace steptwin {
namespace {

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
    if (operands.has(saved, "mask")) dropout_ = operands.constant("dropout");
    x_ = tensor_at(operands, operands.only_tensor(x));
  }
  void forward(const BoundAccess& y, const MaskState& masks);
  struct WeightInputs {
    at::Tensor norm_out, core, dy, sums;
    std::vector<at::Tensor> in;  // gradients of the input projections' outputs
  };
  WeightInputs backward(const BoundAccess& dy, const BoundAccess& dx);

 private:
  at::Tensor saved(const std::string& name) const { return tensor_at(operands_, operands_.tensor(saved_, name)); }
  at::Tensor weight(const std::string& name) const { return tensor_at(operands_, operands_.tensor(param_, name + ".weight")); }
  void project(const std::string& name, const at::Tensor& rows, at::Tensor out) const;
  void activate() const;
  std::vector<at::Tensor> activate_backward(const at::Tensor& d_core) const;
  parts::AttentionTensors attention_tensors() const;
  void rotate_query_and_key(const at::Tensor& q, const at::Tensor& k, parts::Turn turn) const;
  std::vector<at::Tensor> attend_backward(const at::Tensor& d_core) const;

  Half half_;
  Operands& operands_;
  const BoundAccess& param_;
  const BoundAccess& saved_;
  HalfForm form_;
  at::Tensor x_;
  double dropout_ = 0;
};

std::int64_t head_size(const Operands& operands, const BoundAccess& saved) {
  const char* statistics = operands.has(saved, "lse") ? "lse" : "probabilities";
  return operands.tensor(saved, "core.out").shape[2] / operands.tensor(saved, statistics).shape[1];
}

void HalfLayer::project(const std::string& name, const at::Tensor& rows, at::Tensor out) const {
  const at::Tensor w = weight(name);
  if (out.size(0) != rows.size(0) || out.size(1) != w.size(0))
    operands_.fail(fmt::format("the product with {}.weight has the shape {}x{}, the tensor that takes it {}x{}", name, rows.size(0),
                               w.size(0), out.size(0), out.size(1)));
  if (operands_.has(param_, name + ".bias")) {
    at::addmm_out(out, tensor_at(operands_, operands_.tensor(param_, name + ".bias")), rows, w.t());
  } else {
    at::mm_out(out, rows, w.t());
  }
}

void HalfLayer::activate() const {
  const at::Tensor first = saved(form_.in_saved[0]), core = saved(form_.core_saved);
  if (form_.in.size() == 1) return parts::gelu(first, core);
  parts::swiglu(first, saved(form_.in_saved[1]), core);
}

std::vector<at::Tensor> HalfLayer::activate_backward(const at::Tensor& d_core) const {
  const at::Tensor first = rows_of(saved(form_.in_saved[0]));
  if (form_.in.size() == 1) return {parts::gelu_backward(d_core, first)};
  const auto [gate, up] = parts::swiglu_backward(d_core, first, rows_of(saved(form_.in_saved[1])));
  return {gate, up};
}

parts::AttentionTensors HalfLayer::attention_tensors() const {
  parts::AttentionTensors t;
  const at::Tensor core = saved("core.out");
  t.form = operands_.has(saved_, "lse") ? parts::AttentionTensors::Form::Flash : parts::AttentionTensors::Form::Probabilities;
  t.statistics = saved(t.form == parts::AttentionTensors::Form::Flash ? "lse" : "probabilities");
  const std::int64_t heads = t.statistics.size(1), q = core.size(2), d = q / heads;
  const at::Tensor packed = form_.in.size() == 1 ? saved("qkv") : at::Tensor();
  const std::int64_t kv = packed.defined() ? (packed.size(2) - q) / 2 : saved("k").size(2);
  if (d * heads != q || kv % d != 0 || kv == 0 || q % kv != 0) operands_.fail("its heads do not divide the widths of q, k and v");
  const auto by_head = [&](const at::Tensor& part) { return part.view({part.size(0), part.size(1), -1, d}); };
  t.q = by_head(packed.defined() ? packed.narrow(2, 0, q) : saved("q"));
  t.k = by_head(packed.defined() ? packed.narrow(2, q, kv) : saved("k"));
  t.v = by_head(packed.defined() ? packed.narrow(2, q + kv, kv) : saved("v"));
  t.core = by_head(core);
  if (operands_.has(saved_, "core.mask")) t.mask = saved("core.mask"), t.dropped = saved("core.dropped"), t.dropout = dropout_;
  return t;
}

void HalfLayer::rotate_query_and_key(const at::Tensor& q, const at::Tensor& k, parts::Turn turn) const {
  const std::int64_t d = head_size(operands_, saved_);
  if (d % 2 != 0) operands_.fail(fmt::format("RoPE needs an even head size, it is {}", d));
  parts::rotate(q, d, turn);
  parts::rotate(k, d, turn);
}

// Gradients of the input projections' outputs: [dq, dk, dv] or [dqkv].
std::vector<at::Tensor> HalfLayer::attend_backward(const at::Tensor& d_core) const {
  const parts::AttentionTensors t = attention_tensors();
  const auto [dq, dk, dv] = parts::attention_backward(t, d_core.view(t.core.sizes()));
  const auto flat = [](const at::Tensor& part) { return part.flatten(2); };
  if (form_.in.size() == 1) return {at::cat({flat(dq), flat(dk), flat(dv)}, -1)};
  const at::Tensor q = flat(dq), k = flat(dk);
  rotate_query_and_key(q, k, parts::Turn::Back);
  return {q, k, flat(dv)};
}

void HalfLayer::forward(const BoundAccess& y, const MaskState& masks) {
  const at::Tensor normal = rows_of(segment_norm(operands_, x_, param_, saved_));
  for (std::size_t i = 0; i < form_.in.size(); ++i) project(form_.in[i], normal, rows_of(saved(form_.in_saved[i])));
  if (half_ == Half::Mlp) {
    activate();
  } else {
    if (form_.in.size() == 3) rotate_query_and_key(saved("q"), saved("k"), parts::Turn::Forward);
    if (operands_.has(saved_, "core.mask")) draw_mask(of_probabilities(masks), dropout_, saved("core.mask"));
    parts::attention(attention_tensors());
  }
  at::Tensor out = tensor_at(operands_, operands_.only_tensor(y));
  project(form_.out, rows_of(saved(form_.core_saved)), rows_of(out));
  if (dropout_ > 0) {
    draw_mask(masks, dropout_, saved("mask"));
    out.copy_(drop(out, saved("mask"), dropout_));
  }
  out.add_(x_);
}

HalfLayer::WeightInputs HalfLayer::backward(const BoundAccess& dy, const BoundAccess& dx) {
  WeightInputs inputs;
  const at::Tensor slope = tensor_at(operands_, operands_.only_tensor(dy));
  inputs.dy = rows_of(dropout_ > 0 ? drop(slope, saved("mask"), dropout_) : slope);
  inputs.norm_out = rows_of(saved("norm.out"));
  inputs.core = rows_of(saved(form_.core_saved));
  const at::Tensor d_core = at::mm(inputs.dy, weight(form_.out));
  inputs.in = half_ == Half::Mlp ? activate_backward(d_core) : attend_backward(d_core);
  at::Tensor d_norm;
  for (std::size_t i = 0; i < inputs.in.size(); ++i) {
    inputs.in[i] = rows_of(inputs.in[i]);
    const at::Tensor part = at::mm(inputs.in[i], weight(form_.in[i]));
    d_norm = i == 0 ? part : d_norm.add_(part);
  }
  inputs.sums = segment_norm_backward(operands_, d_norm, x_, param_, saved_, slope, tensor_at(operands_, operands_.only_tensor(dx)));
  return inputs;
}

void linear_weight_grad(const Operands& operands, const BoundAccess& gradient, const std::string& name, const at::Tensor& dy,
                        const at::Tensor& x) {
  parts::contribute_product(tensor_at(operands, operands.tensor(gradient, name + ".weight")), dy, x, which_of(gradient));
  if (operands.has(gradient, name + ".bias"))
    parts::contribute(tensor_at(operands, operands.tensor(gradient, name + ".bias")), dy.sum({0}, false, at::kFloat), which_of(gradient));
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
  const bool again = operands.next_is_laid_out_as("random");
  const std::int64_t samples = operands.only_tensor(x).shape.front();
  const MaskState masks = again ? operands.masks_in(operands.read("random")) : operands.masks_of_forward(samples);
  const BoundAccess& saved = operands.write("S");
  HalfLayer(half, operands, x, param, saved).forward(operands.write("y"), masks);
  if (operands.next_is_laid_out_as("random")) operands.save_masks(masks, operands.write("random"));
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
