#include <ATen/ATen.h>
#include <fmt/format.h>

#include "exec/ops/parts.h"
#include "exec/ops/segments.h"

namespace steptwin {
namespace {

constexpr std::int64_t kKeptAlignment = 512;  // as the model description packs it

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
                                 const BoundAccess& saved, const at::Tensor& residual, at::Tensor dx) {
  const NormTensors t = norm_tensors(operands, param, saved);
  return parts::norm_backward(dy, x, t.gain, t.mean, t.rstd, residual, std::move(dx));
}

parts::Contribution which_of(const BoundAccess& gradient) {
  return gradient.mode == AccessMode::Write ? parts::Contribution::First : parts::Contribution::Later;
}

void contribute_norm(const Operands& operands, const BoundAccess& gradient, const at::Tensor& sums) {
  parts::contribute(tensor_at(operands, operands.tensor(gradient, "norm.weight")), sums[0], which_of(gradient));
  if (sums.size(0) > 1) contribute(tensor_at(operands, operands.tensor(gradient, "norm.bias")), sums[1], which_of(gradient));
}

std::byte* KeptTensors::advance(std::int64_t bytes) {
  if (end_ + bytes > kept_.bytes) operands_.fail(fmt::format("what the weight gradient needs does not fit into {} bytes", kept_.bytes));
  std::byte* data = kept_.data + end_;
  end_ += (bytes + kKeptAlignment - 1) / kKeptAlignment * kKeptAlignment;
  return data;
}

void KeptTensors::put(const at::Tensor& value) {
  std::byte* data = advance(static_cast<std::int64_t>(value.nbytes()));
  at::from_blob(data, value.sizes(), options_of(operands_, value.scalar_type())).copy_(value);
}

at::Tensor KeptTensors::get(DType dtype, std::int64_t rows, std::int64_t columns) {
  std::byte* data = advance(rows * columns * size_of(dtype));
  return at::from_blob(data, {rows, columns}, options_of(operands_, scalar_type(operands_, dtype)));
}

}  // namespace steptwin
