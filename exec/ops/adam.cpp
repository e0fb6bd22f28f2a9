#include "exec/ops/adam.h"

#include "exec/ops/segments.h"

namespace steptwin {
namespace {

// A shard of a flat group, padding included: its own piece of a buffer, or a buffer of its own.
FlatBuffer shard_of(const Operands& operands, const BoundAccess& access, DType type) {
  for (const TensorSpec& tensor : access.layout->tensors) {
    if (tensor.dtype != type) operands.fail("Adam needs tensors of one type, layout " + access.layout->name + " is not");
  }
  if (access.bytes % size_of(type) != 0) operands.fail("a shard cuts an element");
  return {access.data, type, access.bytes / size_of(type)};
}

FlatBuffer flat(const Operands& operands, const BoundAccess& access) {
  if (access.layout == nullptr || access.layout->tensors.empty()) operands.fail("an operand of Adam has no layout");
  const DType type = access.layout->tensors.front().dtype;
  if (access.shard || access.part.kind == Part::Kind::Shard) return shard_of(operands, access, type);
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : access.layout->tensors) {
    if (tensor.dtype != type || tensor.offset.value != bytes)
      operands.fail("Adam needs packed tensors of one type, layout " + access.layout->name + " is not");
    bytes += tensor.bytes().value;
  }
  if (access.part.kind != Part::Kind::Whole || bytes != access.bytes) operands.fail("Adam updates whole buffers");
  return {access.data, type, bytes / size_of(type)};
}

// beta^step by squaring: no libm, the same bits everywhere.
double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 != 0) result *= base;
  }
  return result;
}

}  // namespace

void adam(Operands& operands) {
  AdamBuffers b;
  b.gradient = flat(operands, operands.read("G"));
  b.param = b.weight = flat(operands, operands.update("P"));
  const FlatBuffer second = flat(operands, operands.update("master or m")), third = flat(operands, operands.update("m or v"));
  const bool has_master = operands.next_is(AccessMode::Update);
  b.first = has_master ? third : second;
  b.second = has_master ? flat(operands, operands.update("v")) : third;
  if (has_master) b.weight = second;
  operands.finish();
  for (const FlatBuffer& f : {b.gradient, b.weight, b.first, b.second}) {
    if (f.elements != b.param.elements) operands.fail("the buffers of Adam differ in elements");
  }
  const std::int64_t t = operands.step().step;
  if (t < 1) operands.fail("Adam counts its steps from 1");
  const auto update = operands.step().device < 0 ? adam_on_host : adam_on_device;
  update(b, {static_cast<float>(kAdamLearningRate / (1 - power(kAdamBeta1, t))), static_cast<float>(1 / (1 - power(kAdamBeta2, t)))});
}

}  // namespace steptwin
