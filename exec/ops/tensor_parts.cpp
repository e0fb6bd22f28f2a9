#include <ATen/ATen.h>
#include <fmt/format.h>

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
  operands.fail("fp16 is not computed on the CPU", "set precision.compute to bf16 or fp32");
}

void rms_forward(const at::Tensor& x, const at::Tensor& weight, at::Tensor rstd, at::Tensor out) {
  const at::Tensor inverse = x.square().mean(-1, true).add_(kNormEpsilon).rsqrt_();
  rstd.copy_(inverse.squeeze(-1));
  out.copy_(at::mul(x, inverse).mul_(weight));
}

// With n = x * rstd and g = dy * gain: dx = rstd * (g - n * mean(g * n)), dgain = sum over tokens of dy * n.
at::Tensor rms_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, at::Tensor& sums) {
  const at::Tensor inverse = rstd.unsqueeze(-1), normal = at::mul(x, inverse);
  sums = rows_of(at::mul(dy, normal)).sum(0, true);
  at::Tensor dx = at::mul(dy, weight);
  dx.sub_(at::mul(normal, at::mul(dx, normal).mean(-1, true)));
  return dx.mul_(inverse);
}

}  // namespace

at::Tensor tensor_at(const Operands& operands, const TensorView& view) {
  return at::from_blob(view.data, at::IntArrayRef(view.shape.data(), view.shape.size()),
                       at::TensorOptions(scalar_type(operands, view.dtype)));
}

at::Tensor ids_at(const Operands& operands, const BoundAccess& ids) {
  const auto flat = operands.ids(ids);
  return at::from_blob(const_cast<std::int64_t*>(flat.data()), {static_cast<std::int64_t>(flat.size())}, at::TensorOptions(at::kLong));
}

at::Tensor to_fp32(const at::Tensor& t) { return t.to(at::kFloat); }

at::Tensor rows_of(const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); }

at::Tensor norm_forward(const Operands& operands, const at::Tensor& x, const BoundAccess& param, const BoundAccess& saved) {
  const at::Tensor wide = to_fp32(x), weight = to_fp32(tensor_at(operands, operands.tensor(param, "norm.weight")));
  const at::Tensor rstd = tensor_at(operands, operands.tensor(saved, "norm.rstd")),
                   out = tensor_at(operands, operands.tensor(saved, "norm.out"));
  if (!operands.has(saved, "norm.mean")) {
    rms_forward(wide, weight, rstd, out);
    return out;
  }
  const at::Tensor bias = to_fp32(tensor_at(operands, operands.tensor(param, "norm.bias")));
  const auto [normal, mean, inverse] = at::native_layer_norm(wide, {x.size(-1)}, weight, bias, kNormEpsilon);
  out.copy_(normal);
  tensor_at(operands, operands.tensor(saved, "norm.mean")).copy_(mean.view(rstd.sizes()));
  rstd.copy_(inverse.view(rstd.sizes()));
  return out;
}

at::Tensor norm_backward(const Operands& operands, const at::Tensor& dy, const at::Tensor& x, const BoundAccess& param,
                         const BoundAccess& saved, at::Tensor& sums) {
  const at::Tensor wide = to_fp32(x), slope = to_fp32(dy).view(x.sizes());
  const at::Tensor weight = to_fp32(tensor_at(operands, operands.tensor(param, "norm.weight")));
  const at::Tensor rstd = tensor_at(operands, operands.tensor(saved, "norm.rstd"));
  if (!operands.has(saved, "norm.mean")) return rms_backward(slope, wide, weight, rstd, sums);
  const at::Tensor mean = tensor_at(operands, operands.tensor(saved, "norm.mean"));
  const at::Tensor bias = to_fp32(tensor_at(operands, operands.tensor(param, "norm.bias")));
  const auto [dx, dgain, dbias] =
      at::native_layer_norm_backward(slope, wide, {x.size(-1)}, mean.unsqueeze(-1), rstd.unsqueeze(-1), weight, bias, {true, true, true});
  sums = at::stack({dgain, dbias});
  return dx;
}

void contribute(const Operands& operands, const BoundAccess& gradient, const TensorView& view, const at::Tensor& value) {
  at::Tensor sum = tensor_at(operands, view);
  if (gradient.mode == AccessMode::Write) {
    sum.copy_(value.view(sum.sizes()));
  } else {
    sum.add_(to_fp32(value).view(sum.sizes()));  // a 16-bit sum is promoted, added in fp32 and rounded once
  }
}

void contribute_norm(const Operands& operands, const BoundAccess& gradient, const at::Tensor& sums) {
  contribute(operands, gradient, operands.tensor(gradient, "norm.weight"), sums[0]);
  if (sums.size(0) > 1) contribute(operands, gradient, operands.tensor(gradient, "norm.bias"), sums[1]);
}

std::byte* KeptTensors::advance(std::int64_t bytes) {
  if (end_ + bytes > kept_.bytes) operands_.fail(fmt::format("what the weight gradient needs does not fit into {} bytes", kept_.bytes));
  std::byte* data = kept_.data + end_;
  end_ += (bytes + kKeptAlignment - 1) / kKeptAlignment * kKeptAlignment;
  return data;
}

void KeptTensors::put(const at::Tensor& value) {
  std::byte* data = advance(static_cast<std::int64_t>(value.nbytes()));
  at::from_blob(data, value.sizes(), at::TensorOptions(value.scalar_type())).copy_(value);
}

at::Tensor KeptTensors::get(DType dtype, std::int64_t rows, std::int64_t columns) {
  std::byte* data = advance(rows * columns * size_of(dtype));
  return at::from_blob(data, {rows, columns}, at::TensorOptions(scalar_type(operands_, dtype)));
}

}  // namespace steptwin
