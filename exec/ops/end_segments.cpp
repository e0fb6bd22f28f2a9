// The two ends of the network: embedding, and head with the cross-entropy loss.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "exec/ops/parts.h"
#include "exec/ops/segments.h"

namespace steptwin {
namespace {

bool is_table(const BoundAccess& access) { return access.layout->tensors[access.part.a].name.ends_with("token.weight"); }

void table_gradient(const Operands& operands, const BoundAccess& gradient, const TensorView& view, const at::Tensor& dy,
                    const at::Tensor& ids) {
  parts::contribute(tensor_at(operands, view), at::embedding_dense_backward(rows_of(dy), ids, view.shape[0], -1, false),
                    which_of(gradient));
}

// Rows behind the sequence get no contribution: the first one writes zeros there.
void position_gradient(const Operands& operands, const BoundAccess& gradient, const TensorView& view, const at::Tensor& dy) {
  at::Tensor all = tensor_at(operands, view);
  at::Tensor used = all.narrow(0, 0, dy.size(1));
  const at::Tensor sum = dy.sum({0});
  if (gradient.mode == AccessMode::Write) {
    all.zero_();
    used.copy_(sum);
  } else {
    used.add_(sum);
  }
}

// The head's operands that all its phases but W name, and the weight of its projection: its own, or the embedding's table T.
class Head {
 public:
  Head(const Operands& operands, const BoundAccess& param, const BoundAccess* table) : operands_(operands), param_(param) {
    weight_ = tensor_at(operands, table != nullptr ? operands.only_tensor(*table) : operands.tensor(param, "head.weight"));
  }
  void forward(const at::Tensor& x, const at::Tensor& targets, const BoundAccess& saved, const BoundAccess& loss) const;
  struct WeightInputs {
    at::Tensor norm_out, d_logits, sums;  // undefined where no gradient needs it
  };
  // `scale` of the loss, undefined: 1. As far down as dx, null where it is not wanted, and the parameters of `gradient`, null where there
  // are none, ask for.
  WeightInputs backward(const BackwardOperands& taken, const at::Tensor& targets, const at::Tensor& scale, const BoundAccess* dx,
                        const BoundAccess* gradient) const;

 private:
  at::Tensor softmax_rows(const BoundAccess& saved) const { return rows_of(tensor_at(operands_, operands_.tensor(saved, "softmax"))); }

  const Operands& operands_;
  const BoundAccess& param_;
  at::Tensor weight_;
};

void Head::forward(const at::Tensor& x, const at::Tensor& targets, const BoundAccess& saved, const BoundAccess& loss) const {
  const at::Tensor rows = rows_of(segment_norm(operands_, x, param_, saved));
  if (const at::Tensor p = softmax_rows(saved); p.size(0) != rows.size(0) || p.size(1) != weight_.size(0))
    operands_.fail(fmt::format("the logits have the shape {}x{}, softmax {}x{}", rows.size(0), weight_.size(0), p.size(0), p.size(1)));
  parts::softmax_loss(rows, weight_, targets, softmax_rows(saved), tensor_at(operands_, operands_.only_tensor(loss)));
}

Head::WeightInputs Head::backward(const BackwardOperands& taken, const at::Tensor& targets, const at::Tensor& scale, const BoundAccess* dx,
                                  const BoundAccess* gradient) const {
  if (taken.saved == nullptr) operands_.fail("operand S is missing");
  WeightInputs inputs;
  const at::Tensor p = softmax_rows(*taken.saved);
  inputs.d_logits = parts::softmax_loss_backward(p, targets, operands_.step().loss_scale / static_cast<double>(p.size(0)), weight_);
  if (scale.defined()) inputs.d_logits.mul_(scale);
  if (operands_.has(*taken.saved, "norm.out")) inputs.norm_out = rows_of(tensor_at(operands_, operands_.tensor(*taken.saved, "norm.out")));
  if (dx == nullptr && !has_either(operands_, gradient, "norm")) return inputs;
  if (taken.x == nullptr) operands_.fail("operand x is missing, which the norm's gradient needs");
  const at::Tensor d_norm = parts::scores_backward(inputs.d_logits, weight_), x = tensor_at(operands_, operands_.only_tensor(*taken.x));
  inputs.sums = segment_norm_backward(operands_, d_norm, x, param_, *taken.saved, {}, dx);
  return inputs;
}

const BoundAccess* table_operand(Operands& operands) { return operands.next_is_parameter() ? &operands.read("T") : nullptr; }

at::Tensor loss_scale_operand(Operands& operands) {
  if (!operands.next_is(AccessMode::Read)) return {};
  return tensor_at(operands, operands.only_tensor(operands.read("scale"))).narrow(0, 0, 1);
}

// G of the head's own parameters, and dT when a trained table is shared on this rank; null where there are none.
struct HeadGradients {
  const BoundAccess* own = nullptr;
  const BoundAccess* table = nullptr;
};
HeadGradients take_gradients(Operands& operands) {
  HeadGradients gradients;
  while (operands.next_is_gradient()) {
    const BoundAccess& gradient = operands.gradient("G or dT");
    (gradient.part.kind == Part::Kind::Tensor ? gradients.table : gradients.own) = &gradient;
  }
  return gradients;
}

void head_weight_gradients(const Operands& operands, const HeadGradients& gradients, const Head::WeightInputs& inputs) {
  const BoundAccess* const of_weight = gradients.table != nullptr ? gradients.table : gradients.own;
  const bool shared = gradients.table != nullptr;
  if (shared || (of_weight != nullptr && operands.has(*of_weight, "head.weight"))) {
    const at::Tensor sum = tensor_at(operands, shared ? operands.only_tensor(*of_weight) : operands.tensor(*of_weight, "head.weight"));
    parts::contribute_product(sum, inputs.d_logits, inputs.norm_out, which_of(*of_weight));
  }
  if (gradients.own != nullptr) contribute_norm(operands, *gradients.own, inputs.sums);
}

enum class Into : std::uint8_t { Gradients, Kept };

// B, or the I before a W.
void head_gradients(Operands& operands, Into into) {
  const at::Tensor targets = ids_at(operands, operands.read("targets"));
  const BackwardOperands taken = saved_operands(operands);
  const BoundAccess& param = operands.read("P");
  const Head head(operands, param, table_operand(operands));
  const at::Tensor scale = loss_scale_operand(operands);
  const BoundAccess* const dx = operands.next_is_gradient() ? nullptr : &operands.write("dx");
  const HeadGradients gradients = take_gradients(operands);
  const Head::WeightInputs inputs = head.backward(taken, targets, scale, dx, gradients.own);
  if (into == Into::Gradients) {
    head_weight_gradients(operands, gradients, inputs);
  } else if (operands.next_is_kept()) {
    const BoundAccess& kept = operands.write("K");
    if (inputs.norm_out.defined()) keep(operands, kept, "norm.out", inputs.norm_out);
    keep(operands, kept, "d.logits", inputs.d_logits);
    keep(operands, kept, "norm.sums", inputs.sums);
  }
  operands.finish();
}

}  // namespace

void embedding_forward(Operands& operands) {
  const at::Tensor ids = ids_at(operands, operands.read("tokens"));
  const BoundAccess& param = operands.read("P");
  const BoundAccess* const saved = operands.next_is_of_forward() ? &operands.write("S") : nullptr;
  at::Tensor y = tensor_at(operands, operands.only_tensor(operands.write("y")));
  y.view({-1, y.size(-1)}).copy_(at::embedding(tensor_at(operands, operands.tensor(param, "token.weight")), ids));
  if (operands.has(param, "position.weight")) {
    const at::Tensor positions = tensor_at(operands, operands.tensor(param, "position.weight"));
    if (y.size(1) > positions.size(0))
      operands.fail(fmt::format("a sequence of {} tokens exceeds the model's {} positions", y.size(1), positions.size(0)));
    y.add_(positions.narrow(0, 0, y.size(1)));
  }
  if (saved != nullptr) {
    const at::Tensor mask = tensor_at(operands, operands.tensor(*saved, "mask"));
    draw_mask(operands.masks_of_forward(mask.size(0)), operands.constant("dropout"), mask);
    y.copy_(drop(y, mask, operands.constant("dropout")));
  }
  operands.finish();
}

void embedding_backward(Operands& operands) {
  at::Tensor dy = to_fp32(tensor_at(operands, operands.only_tensor(operands.read("dy"))));
  const at::Tensor ids = ids_at(operands, operands.read("tokens"));
  if (operands.next_is(AccessMode::Read))
    dy = drop(dy, tensor_at(operands, operands.tensor(operands.read("S"), "mask")), operands.constant("dropout"));
  do {
    const BoundAccess& gradient = operands.gradient("G");
    if (gradient.part.kind != Part::Kind::Tensor) {
      if (operands.has(gradient, "token.weight")) table_gradient(operands, gradient, operands.tensor(gradient, "token.weight"), dy, ids);
      if (operands.has(gradient, "position.weight"))
        position_gradient(operands, gradient, operands.tensor(gradient, "position.weight"), dy);
    } else if (const TensorView view = operands.only_tensor(gradient); is_table(gradient)) {
      table_gradient(operands, gradient, view, dy, ids);
    } else {
      position_gradient(operands, gradient, view, dy);
    }
  } while (operands.next_is_gradient());
  operands.finish();
}

void head_forward(Operands& operands) {
  const at::Tensor x = tensor_at(operands, operands.only_tensor(operands.read("x")));
  const at::Tensor targets = ids_at(operands, operands.read("targets"));
  const BoundAccess& param = operands.read("P");
  const Head head(operands, param, table_operand(operands));
  const BoundAccess& saved = operands.write("S");
  head.forward(x, targets, saved, operands.write("loss"));
  operands.finish();
}

void head_backward(Operands& operands) { head_gradients(operands, Into::Gradients); }

void head_input_grad(Operands& operands) { head_gradients(operands, Into::Kept); }

// Behind an I from what it kept, else the whole backward.
void head_weight_grad(Operands& operands) {
  if (!operands.next_is_kept()) return head_backward(operands);
  const BoundAccess& kept = operands.read("K");
  Head::WeightInputs inputs;
  inputs.norm_out = kept_tensor(operands, kept, "norm.out");
  inputs.d_logits = kept_tensor(operands, kept, "d.logits");
  inputs.sums = kept_tensor(operands, kept, "norm.sums");
  head_weight_gradients(operands, take_gradients(operands), inputs);
  operands.finish();
}

}  // namespace steptwin
