// What is computed on gradients as flat memory, whatever tensors lie in them: schedule/mechanisms/zero.cpp and overflow.cpp.
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

void accumulate(Operands& operands) {
  const at::Tensor earlier = flat_tensor(operands, operands.read("gradient shard"));
  at::Tensor own = flat_tensor(operands, operands.update("G[shard]"));
  if (own.numel() != earlier.numel() || own.scalar_type() != earlier.scalar_type())
    operands.fail("the shard and the piece of the gradients differ in size or type");
  own.add_(earlier);
  operands.finish();
}

}  // namespace steptwin
