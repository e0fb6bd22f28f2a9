// Forward, input-gradient and weight-gradient kernels that both halves of a layer have in common.
#include <algorithm>

#include "schedule/model/segments.h"

namespace steptwin {
namespace {

bool has_dropout(const ModelShape& model) { return model.dropout > 0; }

// y = x + dropout(z); the mask is written with it.
Kernel residual_forward(const ModelShape& model, const Sizes& z) {
  const std::int64_t elements = z.tokens * z.h;
  const std::int64_t mask = has_dropout(model) ? 1 : 0;
  return stream_kernel(z.compute, elements, 1 + 2 * mask, Bytes(elements * (3 * z.e + mask)));
}

Kernel dropout_input_grad(const Sizes& z) {
  const std::int64_t elements = z.tokens * z.h;
  return stream_kernel(z.compute, elements, 2, Bytes(elements * (2 * z.e + 1)));
}

// dx = dy + the norm's dx.
Kernel residual_input_grad(const Sizes& z) { return stream_kernel(z.compute, z.tokens * z.h, 1, Bytes(3 * z.tokens * z.h * z.e)); }

Work forward_work(const ModelShape& model, const Sizes& z, const HalfLayer& half) {
  Work work;
  work.kernels.push_back(norm_forward(model, z));
  for (const Linear& linear : half.in) work.kernels.push_back(linear_forward(z, linear));
  work.kernels.insert(work.kernels.end(), half.core_forward.begin(), half.core_forward.end());
  work.kernels.push_back(linear_forward(z, half.out));
  work.kernels.push_back(residual_forward(model, z));
  return work;
}

Work input_grad_work(const ModelShape& model, const Sizes& z, const HalfLayer& half, const WantedGradients& wanted) {
  Work work;
  const Depth depth = depth_of(model, half, wanted);
  if (has_dropout(model) && wanted.any()) work.kernels.push_back(dropout_input_grad(z));
  if (depth.core) {
    work.kernels.push_back(linear_input_grad(z, half.out));
    work.kernels.insert(work.kernels.end(), half.core_input_grad.begin(), half.core_input_grad.end());
  }
  for (std::size_t i = 0; depth.norm && i < half.in.size(); ++i) {
    work.kernels.push_back(linear_input_grad(z, half.in[i]));
    if (i > 0) work.kernels.back().bytes += Bytes(z.tokens * z.h * z.e);  // adds to the sum of the ones before
  }
  if (depth.norm) work.kernels.push_back(norm_input_grad(model, z));
  if (wanted.input) work.kernels.push_back(residual_input_grad(z));
  return work;
}

Work weight_grad_work(const ModelShape& model, const Sizes& z, const HalfLayer& half, const WantedGradients& wanted) {
  Work work;
  add_linear_weight_grad(z, wanted, half.out, work);
  for (const Linear& linear : half.in) add_linear_weight_grad(z, wanted, linear, work);
  if (const std::int64_t vectors = wanted_norm_vectors(model, wanted); vectors > 0) work.kernels.push_back(norm_weight_grad(z, vectors));
  return work;
}

SavedSet kept_for_weight_grad(const ModelShape& model, const Sizes& z, const HalfLayer& half, const WantedGradients& wanted) {
  SavedSet kept(std::string(half.name) + ".kept");
  if (wants_weight_of_in(half, wanted)) kept.add("norm.out", z.compute, {z.tokens, z.h});
  if (wants_weight(wanted, half.out)) kept.add("core.out", z.compute, {z.tokens, half.out.in});
  if (wants_weight(wanted, half.out) || wants_bias(wanted, half.out)) kept.add("dy", z.compute, {z.tokens, half.out.out});
  for (const Linear& linear : half.in)
    if (wants_weight(wanted, linear) || wants_bias(wanted, linear))
      kept.add(std::string("d.") + linear.name, z.compute, {z.tokens, linear.out});
  if (wanted_norm_vectors(model, wanted) > 0) kept.add("norm.sums", DType::Fp32, {norm_vectors(model), z.h});
  return kept;
}

}  // namespace

bool wants_weight_of_in(const HalfLayer& half, const WantedGradients& wanted) {
  return std::any_of(half.in.begin(), half.in.end(), [&](const Linear& linear) { return wants_weight(wanted, linear); });
}

Depth depth_of(const ModelShape& model, const HalfLayer& half, const WantedGradients& wanted) {
  const bool norm = wanted.input || wanted_norm_vectors(model, wanted) > 0;
  const bool bias = std::any_of(half.in.begin(), half.in.end(), [&](const Linear& linear) { return wants_bias(wanted, linear); });
  return {norm || bias || wants_weight_of_in(half, wanted), norm};
}

void set_half_layer(const ModelShape& model, const Sizes& z, const HalfLayer& half, const WantedGradients& wanted, SegmentCost& cost) {
  cost.forward = forward_work(model, z, half);
  cost.input_grad = input_grad_work(model, z, half, wanted);
  cost.weight_grad = weight_grad_work(model, z, half, wanted);
  cost.keeps_input = depth_of(model, half, wanted).norm;
  cost.output_bytes = Bytes(z.tokens * z.h * z.e);
  SavedSet kept = kept_for_weight_grad(model, z, half, wanted);
  cost.kept_for_weight_grad = kept.bytes();
  cost.kept = std::move(kept).layout();
}

}  // namespace steptwin
