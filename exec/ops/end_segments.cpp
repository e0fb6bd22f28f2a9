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
    at::Tensor norm_out, d_logits, sums;
  };
  // `scale` of the loss, undefined: 1.
  WeightInputs backward(const at::Tensor& x, const at::Tensor& targets, const BoundAccess& saved, const at::Tensor& scale,
                        const BoundAccess& dx) const;

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

Head::WeightInputs Head::backward(const at::Tensor& x, const at::Tensor& targets, const BoundAccess& saved, const at::Tensor& scale,
                                  const BoundAccess& dx) const {
  WeightInputs inputs;
  const at::Tensor p = softmax_rows(saved);
  inputs.d_logits = parts::softmax_loss_backward(p, targets, operands_.step().loss_scale / static_cast<double>(p.size(0)), weight_);
  if (scale.defined()) inputs.d_logits.mul_(scale);
  inputs.norm_out = rows_of(tensor_at(operands_, operands_.tensor(saved, "norm.out")));
  const at::Tensor d_norm = parts::scores_backward(inputs.d_logits, weight_);
  inputs.sums = segment_norm_backward(operands_, d_norm, x, param_, saved, {}, tensor_at(operands_, operands_.only_tensor(dx)));
  return inputs;
}

const BoundAccess* table_operand(Operands& operands) { return operands.next_is_parameter() ? &operands.read("T") : nullptr; }

at::Tensor loss_scale_operand(Operands& operands) {
  if (!operands.next_is(AccessMode::Read)) return {};
  return tensor_at(operands, operands.only_tensor(operands.read("scale"))).narrow(0, 0, 1);
}

Head::WeightInputs head_input_gradient(Operands& operands) {
  const BoundAccess& targets = operands.read("targets");
  const BoundAccess& saved = operands.read("S");
  const BoundAccess& x = operands.read("x");
  const BoundAccess& param = operands.read("P");
  const Head head(operands, param, table_operand(operands));
  const at::Tensor scale = loss_scale_operand(operands);
  return head.backward(tensor_at(operands, operands.only_tensor(x)), ids_at(operands, targets), saved, scale, operands.write("dx"));
}

// `gradient` G of the head, then dT when the table is shared on this rank.
void head_weight_gradients(Operands& operands, const BoundAccess& gradient, const BoundAccess* table, const Head::WeightInputs& inputs) {
  const at::Tensor sum = tensor_at(operands, table != nullptr ? operands.only_tensor(*table) : operands.tensor(gradient, "head.weight"));
  parts::contribute_product(sum, inputs.d_logits, inputs.norm_out, which_of(table != nullptr ? *table : gradient));
  contribute_norm(operands, gradient, inputs.sums);
}

const BoundAccess* table_gradient_operand(Operands& operands) { return operands.next_is_gradient() ? &operands.gradient("dT") : nullptr; }

}  // namespace

void embedding_forward(Operands& operands) {
  const at::Tensor ids = ids_at(operands, operands.read("tokens"));
  const BoundAccess& param = operands.read("P");
  const BoundAccess* const saved = operands.next_is_laid_out_as("embed.saved") ? &operands.write("S") : nullptr;
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
      table_gradient(operands, gradient, operands.tensor(gradient, "token.weight"), dy, ids);
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

void head_backward(Operands& operands) {
  const Head::WeightInputs inputs = head_input_gradient(operands);
  const BoundAccess& gradient = operands.gradient("G");
  head_weight_gradients(operands, gradient, table_gradient_operand(operands), inputs);
  operands.finish();
}

void head_input_grad(Operands& operands) {
  const Head::WeightInputs inputs = head_input_gradient(operands);
  KeptTensors k(operands, operands.write("K"));
  for (const at::Tensor& t : {inputs.norm_out, inputs.d_logits, inputs.sums}) k.put(t);
  operands.finish();
}

void head_weight_grad(Operands& operands) {
  const BoundAccess& kept = operands.read("K");
  const BoundAccess& gradient = operands.gradient("G");
  const BoundAccess* table = table_gradient_operand(operands);
  if (operands.work().kernels.empty()) operands.fail("its work has no kernels; the weight gradient takes its shapes from it");
  const Kernel& kernel = operands.work().kernels.front();  // the projection on the vocabulary: k = tokens
  const auto shape = table != nullptr ? operands.only_tensor(*table).shape : operands.tensor(gradient, "head.weight").shape;
  KeptTensors k(operands, kept);
  Head::WeightInputs inputs;
  inputs.norm_out = k.get(kernel.dtype, kernel.k, shape[1]);
  inputs.d_logits = k.get(kernel.dtype, kernel.k, shape[0]);
  inputs.sums = k.get(DType::Fp32, operands.has(gradient, "norm.bias") ? 2 : 1, shape[1]);
  head_weight_gradients(operands, gradient, table, inputs);
  operands.finish();
}

}  // namespace steptwin
