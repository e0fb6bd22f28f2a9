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

Work input_grad_work(const ModelShape& model, const Sizes& z, const HalfLayer& half) {
  Work work;
  if (has_dropout(model)) work.kernels.push_back(dropout_input_grad(z));
  work.kernels.push_back(linear_input_grad(z, half.out));
  work.kernels.insert(work.kernels.end(), half.core_input_grad.begin(), half.core_input_grad.end());
  for (std::size_t i = 0; i < half.in.size(); ++i) {
    work.kernels.push_back(linear_input_grad(z, half.in[i]));
    if (i > 0) work.kernels.back().bytes += Bytes(z.tokens * z.h * z.e);  // adds to the sum of the ones before
  }
  work.kernels.push_back(norm_input_grad(model, z));
  work.kernels.push_back(residual_input_grad(z));
  return work;
}

Work weight_grad_work(const ModelShape& model, const Sizes& z, const HalfLayer& half) {
  Work work;
  add_linear_weight_grad(z, half.out, work);
  for (const Linear& linear : half.in) add_linear_weight_grad(z, linear, work);
  work.kernels.push_back(norm_weight_grad(model, z));
  return work;
}

Bytes kept_for_weight_grad(const ModelShape& model, const Sizes& z, const HalfLayer& half) {
  std::vector<Transient> kept = {{z.tokens * z.h, z.e}, {z.tokens * half.out.in, z.e}, {z.tokens * half.out.out, z.e}};
  for (const Linear& linear : half.in) kept.push_back({z.tokens * linear.out, z.e});
  kept.push_back({norm_vectors(model) * z.h, 4});
  return transient_bytes(kept);
}

}  // namespace

void set_half_layer(const ModelShape& model, const Sizes& z, const HalfLayer& half, SegmentCost& cost) {
  cost.forward = forward_work(model, z, half);
  cost.input_grad = input_grad_work(model, z, half);
  cost.weight_grad = weight_grad_work(model, z, half);
  cost.keeps_input = true;
  cost.output_bytes = Bytes(z.tokens * z.h * z.e);
  cost.kept_for_weight_grad = kept_for_weight_grad(model, z, half);
}

}  // namespace steptwin
