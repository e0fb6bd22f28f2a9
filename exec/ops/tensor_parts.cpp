#include <ATen/ATen.h>
#include <fmt/format.h>

#include "exec/ops/parts.h"
#include "exec/ops/segments.h"

namespace steptwin {
namespace {

at::ScalarType scalar_type(const Operands& operands, DType dtype) {
  switch (dtype) {
    case DType::Fp32:
      return at::kFloat;
    case DType::Bf16:
      return at::kBFloat16;
    case DType::Int64:
      return at::kLong;
    case DType::Int32:
      return at::kInt;
    case DType::Uint8:
      return at::kByte;
    case DType::Fp16:
      break;
  }
  operands.fail("fp16 is not computed", "set precision.compute to bf16 or fp32");
}

// Where the operands lie, as LibTorch says it.
at::TensorOptions options_of(const Operands& operands, at::ScalarType type) {
  const at::TensorOptions options(type);
  const std::int32_t device = operands.step().device;
  return device < 0 ? options : options.device(at::kCUDA, static_cast<at::DeviceIndex>(device));
}

struct NormTensors {
  at::Tensor gain, mean, rstd;  // mean: only of LayerNorm
};
NormTensors norm_tensors(const Operands& operands, const BoundAccess& param, const BoundAccess& saved) {
  NormTensors t;
  t.gain = tensor_at(operands, operands.tensor(param, "norm.weight"));
  t.rstd = tensor_at(operands, operands.tensor(saved, "norm.rstd"));
  if (operands.has(saved, "norm.mean")) t.mean = tensor_at(operands, operands.tensor(saved, "norm.mean"));
  return t;
}

}  // namespace

at::Tensor tensor_at(const Operands& operands, const TensorView& view) {
  return at::from_blob(view.data, at::IntArrayRef(view.shape.data(), view.shape.size()),
                       options_of(operands, scalar_type(operands, view.dtype)));
}

at::Tensor ids_at(const Operands& operands, const BoundAccess& ids) {
  const auto flat = operands.ids(ids);
  return at::from_blob(const_cast<std::int64_t*>(flat.data()), {static_cast<std::int64_t>(flat.size())}, options_of(operands, at::kLong));
}

at::Tensor to_fp32(const at::Tensor& t) { return t.to(at::kFloat); }

at::Tensor rows_of(const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); }

at::Tensor segment_norm(const Operands& operands, const at::Tensor& x, const BoundAccess& param, const BoundAccess& saved) {
  const NormTensors t = norm_tensors(operands, param, saved);
  const at::Tensor bias = t.mean.defined() ? tensor_at(operands, operands.tensor(param, "norm.bias")) : at::Tensor();
  at::Tensor out = tensor_at(operands, operands.tensor(saved, "norm.out"));
  parts::norm(x, t.gain, bias, out, t.mean, t.rstd);
  return out;
}

at::Tensor segment_norm_backward(const Operands& operands, const at::Tensor& dy, const at::Tensor& x, const BoundAccess& param,
                                 const BoundAccess& saved, const at::Tensor& residual, const BoundAccess* dx) {
  const NormTensors t = norm_tensors(operands, param, saved);
  at::Tensor out = dx != nullptr ? tensor_at(operands, operands.only_tensor(*dx)) : at::empty_like(x);
  return parts::norm_backward(dy, x, t.gain, t.mean, t.rstd, residual, std::move(out));
}

parts::Contribution which_of(const BoundAccess& gradient) {
  return gradient.mode == AccessMode::Write ? parts::Contribution::First : parts::Contribution::Later;
}

void contribute_norm(const Operands& operands, const BoundAccess& gradient, const at::Tensor& sums) {
  std::int64_t row = 0;
  for (const char* name : {"norm.weight", "norm.bias"}) {
    if (operands.has(gradient, name))
      parts::contribute(tensor_at(operands, operands.tensor(gradient, name)), sums[row], which_of(gradient));
    ++row;
  }
}

bool has_either(const Operands& operands, const BoundAccess* gradient, const std::string& name) {
  return gradient != nullptr && (operands.has(*gradient, name + ".weight") || operands.has(*gradient, name + ".bias"));
}

BackwardOperands saved_operands(Operands& operands) {
  BackwardOperands taken;
  if (operands.next_is_of_forward()) taken.saved = &operands.read("S");
  if (operands.next_is(AccessMode::Read) && !operands.next_is_parameter()) taken.x = &operands.read("x");
  return taken;
}

at::Tensor kept_tensor(const Operands& operands, const BoundAccess& kept, const std::string& name) {
  return operands.has(kept, name) ? tensor_at(operands, operands.tensor(kept, name)) : at::Tensor();
}

void keep(const Operands& operands, const BoundAccess& kept, const std::string& name, const at::Tensor& value) {
  if (at::Tensor place = kept_tensor(operands, kept, name); place.defined()) place.copy_(value);
}

}  // namespace steptwin
