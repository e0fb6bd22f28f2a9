// What is computed on gradients as flat memory, whatever tensors lie in them: schedule/mechanisms/zero.cpp, overflow.cpp and
// gradient_scale.cpp.
#include <ATen/ATen.h>

#include "exec/ops/segments.h"

namespace steptwin {
namespace {

// All bytes of the operand as elements of its layout's type.
at::Tensor flat_tensor(const Operands& operands, const BoundAccess& access) {
  if (access.layout == nullptr || access.layout->tensors.empty()) operands.fail("a flat gradient has no layout");
  const DType type = access.layout->tensors.front().dtype;
  const std::int64_t elements = access.bytes / size_of(type);
  return tensor_at(operands, {access.data, type, {&elements, 1}});
}

}  // namespace

void fill(Operands& operands) {
  flat_tensor(operands, operands.write("G")).zero_();
  operands.finish();
}

// The first group writes the flag, later ones raise it.
void check_finite(Operands& operands) {
  const at::Tensor bad = at::isfinite(flat_tensor(operands, operands.read("G"))).all().logical_not().to(at::kFloat);
  const bool first = operands.next_is(AccessMode::Write);
  at::Tensor flag = flat_tensor(operands, first ? operands.write("flag") : operands.update("flag"));
  flag.copy_(first ? bad.view({1}) : at::maximum(flag, bad.view({1})));
  operands.finish();
}

void decide(Operands& operands) {
  const at::Tensor flag = flat_tensor(operands, operands.read("flag"));
  flat_tensor(operands, operands.write("ok")).copy_(at::rsub(flag, 1));
  operands.finish();
}

void inspect(Operands& operands) {
  const at::Tensor stack = tensor_at(operands, operands.only_tensor(operands.read("hidden states")));
  const BoundAccess& access = operands.update("figures");
  const std::int64_t micro_batch = operands.part().micro_batch, layers = stack.size(0);
  const at::Tensor figures = flat_tensor(operands, access).view({layers, -1, 4});
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const at::Tensor state = to_fp32(stack[layer]).flatten();
    figures[layer][micro_batch].copy_(at::stack({state.mean(), state.std(true), state.min(), state.max()}));
  }
  operands.finish();
}

void add_squares(Operands& operands) {
  at::Tensor gradient = to_fp32(flat_tensor(operands, operands.read("G")));
  if (operands.next_is(AccessMode::Read)) gradient = gradient / flat_tensor(operands, operands.read("scale"))[0];
  flat_tensor(operands, operands.update("norm")).add_(gradient.square().sum());
  operands.finish();
}

// min(1, clip / (norm + 1e-6)), the epsilon of BMTrain and PyTorch.
void scale_factor(Operands& operands) {
  constexpr double kEpsilon = 1e-6;
  at::Tensor factor;
  while (operands.next_is(AccessMode::Read)) {
    const BoundAccess& access = operands.read("norm or scale");
    const at::Tensor values = flat_tensor(operands, access);
    const bool norm = access.layout->name == "norm";
    at::Tensor own = norm ? values.narrow(0, 0, 1) : values.narrow(0, 0, 1).reciprocal();
    if (norm && values.numel() > 1) own = own + values.narrow(0, 1, 1) / operands.constant("norm_copies");
    if (norm) own = at::clamp_max(at::reciprocal(own.sqrt() + kEpsilon) * operands.constant("clip"), 1.0);
    factor = factor.defined() ? factor * own : own;
  }
  if (!factor.defined()) operands.fail("a factor is made of a norm, a loss scale or both");
  flat_tensor(operands, operands.write("factor")).copy_(factor);
  operands.finish();
}

void rescale(Operands& operands) {
  constexpr double kLeast = 1, kMost = 3.4e38;
  const at::Tensor good = flat_tensor(operands, operands.read("ok")) > 0.5;
  at::Tensor state = flat_tensor(operands, operands.update("scale"));
  const double factor = operands.constant("loss_scale_factor"), steps = operands.constant("loss_scale_steps");
  const at::Tensor scale = state.narrow(0, 0, 1), count = state.narrow(0, 1, 1) + 1, skipped = state.narrow(0, 2, 1);
  const at::Tensor grows = count >= steps;
  const at::Tensor higher = at::where(grows, at::clamp_max(scale * factor, kMost), scale);
  const at::Tensor next = at::where(good, higher, at::clamp_min(scale / factor, kLeast));
  const at::Tensor counted = at::where(at::logical_and(good, at::logical_not(grows)), count, at::zeros_like(count));
  state.copy_(at::cat({next, counted, at::where(good, skipped, skipped + 1)}));
  operands.finish();
}

void scale(Operands& operands) {
  const at::Tensor factor = flat_tensor(operands, operands.read("factor"));
  flat_tensor(operands, operands.update("G")).mul_(factor);
  operands.finish();
}

void accumulate(Operands& operands) {
  const at::Tensor earlier = flat_tensor(operands, operands.read("gradient shard"));
  at::Tensor own = flat_tensor(operands, operands.update("G[shard]"));
  if (own.numel() != earlier.numel() || own.scalar_type() != earlier.scalar_type())
    operands.fail("the shard and the piece of the gradients differ in size or type");
  own.add_(earlier);
  operands.finish();
}

}  // namespace steptwin
