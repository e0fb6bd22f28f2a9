// The two halves of a transformer layer, y = x + out(core(in(norm(x)))): attention and MLP of both families.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
  // x and saved are null where a backward needs nothing of them.
  HalfLayer(Half half, Operands& operands, const BoundAccess* x, const BoundAccess& param, const BoundAccess* saved)
      : half_(half), operands_(operands), param_(param), saved_(saved), form_(form_of(half, operands, param)) {
    if (has_saved("mask")) dropout_ = operands.constant("dropout");
    if (x != nullptr) x_ = tensor_at(operands, operands.only_tensor(*x));
  }
  void forward(const BoundAccess& y, const MaskState& masks);
  // What the weight gradients are made of; undefined where none needs it.
  struct WeightInputs {
    at::Tensor norm_out, core, dy, sums;
    std::vector<std::pair<std::string, at::Tensor>> in;  // by input projection: gradients of their outputs
  };
  // As far down as dx, null where it is not wanted, and the parameters of `gradient`, null where there are none, ask for.
  WeightInputs backward(const BoundAccess& dy, const BoundAccess* dx, const BoundAccess* gradient);

 private:
  bool has_saved(const std::string& name) const { return saved_ != nullptr && operands_.has(*saved_, name); }
  at::Tensor saved(const std::string& name) const {
    if (saved_ == nullptr) operands_.fail(fmt::format("operand S is missing, of which it needs {}", name));
    return tensor_at(operands_, operands_.tensor(*saved_, name));
  }
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
  const BoundAccess* saved_;
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
  t.form = has_saved("lse") ? parts::AttentionTensors::Form::Flash : parts::AttentionTensors::Form::Probabilities;
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
  if (has_saved("core.mask")) t.mask = saved("core.mask"), t.dropped = saved("core.dropped"), t.dropout = dropout_;
  return t;
}

void HalfLayer::rotate_query_and_key(const at::Tensor& q, const at::Tensor& k, parts::Turn turn) const {
  const std::int64_t d = head_size(operands_, *saved_);
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
  const at::Tensor normal = rows_of(segment_norm(operands_, x_, param_, *saved_));
  for (std::size_t i = 0; i < form_.in.size(); ++i) project(form_.in[i], normal, rows_of(saved(form_.in_saved[i])));
  if (half_ == Half::Mlp) {
    activate();
  } else {
    if (form_.in.size() == 3) rotate_query_and_key(saved("q"), saved("k"), parts::Turn::Forward);
    if (has_saved("core.mask")) draw_mask(of_probabilities(masks), dropout_, saved("core.mask"));
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

HalfLayer::WeightInputs HalfLayer::backward(const BoundAccess& dy, const BoundAccess* dx, const BoundAccess* gradient) {
  WeightInputs inputs;
  const at::Tensor slope = tensor_at(operands_, operands_.only_tensor(dy));
  inputs.dy = rows_of(dropout_ > 0 ? drop(slope, saved("mask"), dropout_) : slope);
  if (has_saved("norm.out")) inputs.norm_out = rows_of(saved("norm.out"));
  if (has_saved(form_.core_saved)) inputs.core = rows_of(saved(form_.core_saved));
  const bool norm = dx != nullptr || has_either(operands_, gradient, "norm");
  const bool core =
      norm || std::any_of(form_.in.begin(), form_.in.end(), [&](const auto& in) { return has_either(operands_, gradient, in); });
  if (!core) return inputs;
  const at::Tensor d_core = at::mm(inputs.dy, weight(form_.out));
  const std::vector<at::Tensor> d_in = half_ == Half::Mlp ? activate_backward(d_core) : attend_backward(d_core);
  at::Tensor d_norm;
  for (std::size_t i = 0; i < d_in.size(); ++i) {
    inputs.in.emplace_back(form_.in[i], rows_of(d_in[i]));
    if (!norm) continue;
    const at::Tensor part = at::mm(inputs.in[i].second, weight(form_.in[i]));
    d_norm = i == 0 ? part : d_norm.add_(part);
  }
  if (!norm) return inputs;
  if (!x_.defined()) operands_.fail("operand x is missing, which the norm's gradient needs");
  inputs.sums = segment_norm_backward(operands_, d_norm, x_, param_, *saved_, slope, dx);
  return inputs;
}

const char* out_projection(Half half) { return half == Half::Attention ? "out" : "down"; }

void linear_weight_grad(const Operands& operands, const BoundAccess& gradient, const std::string& name, const at::Tensor& dy,
                        const at::Tensor& x) {
  if (operands.has(gradient, name + ".weight"))
    parts::contribute_product(tensor_at(operands, operands.tensor(gradient, name + ".weight")), dy, x, which_of(gradient));
  if (operands.has(gradient, name + ".bias"))
    parts::contribute(tensor_at(operands, operands.tensor(gradient, name + ".bias")), dy.sum({0}, false, at::kFloat), which_of(gradient));
}

void weight_grads(Half half, const Operands& operands, const BoundAccess& gradient, const HalfLayer::WeightInputs& inputs) {
  linear_weight_grad(operands, gradient, out_projection(half), inputs.dy, inputs.core);
  for (const auto& [name, slope] : inputs.in) linear_weight_grad(operands, gradient, name, slope, inputs.norm_out);
  contribute_norm(operands, gradient, inputs.sums);
}

// Operands of B and I up to P.
HalfLayer read_backward(Half half, Operands& operands) {
  const BackwardOperands taken = saved_operands(operands);
  const BoundAccess& param = operands.read("P");
  return {half, operands, taken.x, param, taken.saved};
}

HalfLayer::WeightInputs unpack(Half half, const Operands& operands, const BoundAccess& kept) {
  HalfLayer::WeightInputs inputs;
  inputs.norm_out = kept_tensor(operands, kept, "norm.out");
  inputs.core = kept_tensor(operands, kept, "core.out");
  inputs.dy = kept_tensor(operands, kept, "dy");
  inputs.sums = kept_tensor(operands, kept, "norm.sums");
  using Names = std::vector<std::string>;
  for (const std::string& name : half == Half::Attention ? Names{"qkv", "q", "k", "v"} : Names{"gate", "up"})
    if (const at::Tensor slope = kept_tensor(operands, kept, "d." + name); slope.defined()) inputs.in.emplace_back(name, slope);
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
  HalfLayer(half, operands, &x, param, &saved).forward(operands.write("y"), masks);
  if (operands.next_is_laid_out_as("random")) operands.save_masks(masks, operands.write("random"));
  operands.finish();
}

void half_layer_backward(Half half, Operands& operands) {
  const BoundAccess& dy = operands.read("dy");
  HalfLayer layer = read_backward(half, operands);
  const BoundAccess* const dx = operands.next_is_gradient() ? nullptr : &operands.write("dx");
  const BoundAccess* const gradient = operands.next_is_gradient() ? &operands.gradient("G") : nullptr;
  const HalfLayer::WeightInputs inputs = layer.backward(dy, dx, gradient);
  if (gradient != nullptr) weight_grads(half, operands, *gradient, inputs);
  operands.finish();
}

void half_layer_input_grad(Half half, Operands& operands) {
  const BoundAccess& dy = operands.read("dy");
  HalfLayer layer = read_backward(half, operands);
  const HalfLayer::WeightInputs inputs = layer.backward(dy, &operands.write("dx"), nullptr);
  if (operands.next_is_kept()) {
    const BoundAccess& kept = operands.write("K");
    if (inputs.norm_out.defined()) keep(operands, kept, "norm.out", inputs.norm_out);
    if (inputs.core.defined()) keep(operands, kept, "core.out", inputs.core);
    keep(operands, kept, "dy", inputs.dy);
    for (const auto& [name, slope] : inputs.in) keep(operands, kept, "d." + name, slope);
    keep(operands, kept, "norm.sums", inputs.sums);
  }
  operands.finish();
}

// Behind an I from what it kept, else the whole backward.
void half_layer_weight_grad(Half half, Operands& operands) {
  if (!operands.next_is_kept()) return half_layer_backward(half, operands);
  const BoundAccess& kept = operands.read("K");
  const BoundAccess& gradient = operands.gradient("G");
  weight_grads(half, operands, gradient, unpack(half, operands, kept));
  operands.finish();
}

}  // namespace steptwin
