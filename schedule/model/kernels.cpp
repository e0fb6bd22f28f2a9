#include "schedule/model/kernels.h"

#include <utility>

namespace steptwin {
namespace {

// Element operations of a norm: mean, variance, scaling, gain (and bias); its backward makes two row sums and two column sums.
constexpr std::int64_t kNormForwardFlops = 8;
constexpr std::int64_t kNormBackwardFlops = 14;

std::int64_t norm_statistics(const ModelShape& model) { return model.family == Family::Gpt ? 2 : 1; }  // mean and rstd; rstd

}  // namespace

Sizes sizes_of(const ModelShape& model, const BatchShape& batch, DType compute, DType gradient) {
  Sizes z;
  z.b = batch.micro_batch;
  z.s = batch.sequence;
  z.h = model.hidden;
  z.a = model.heads;
  z.f = model.ffn;
  z.V = model.vocabulary;
  z.d = model.head_size;
  z.q = model.heads * model.head_size;
  z.kv = model.kv_heads * model.head_size;
  z.tokens = z.b * z.s;
  z.scores = z.b * z.a * z.s * z.s;
  z.e = size_of(compute);
  z.compute = compute;
  z.gradient = gradient;
  return z;
}

Kernel matmul_kernel(DType type, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
  Kernel kernel;
  kernel.kind = Kernel::Kind::MatMul;
  kernel.dtype = type;
  kernel.batch = batch;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  kernel.flops = Flops(2 * batch * m * n * k);
  kernel.bytes = Bytes(size_of(type) * batch * (m * k + k * n + m * n));
  return kernel;
}

Kernel stream_kernel(DType type, std::int64_t elements, std::int64_t flops_per_element, Bytes bytes) {
  Kernel kernel;
  kernel.kind = Kernel::Kind::Stream;
  kernel.dtype = type;
  kernel.flops = Flops(elements * flops_per_element);
  kernel.bytes = bytes;
  return kernel;
}

Kernel linear_forward(const Sizes& z, const Linear& linear) {
  Kernel kernel = matmul_kernel(z.compute, 1, z.tokens, linear.out, linear.in);
  if (linear.bias) kernel.bytes += Bytes(linear.out * z.e);
  return kernel;
}

Kernel linear_input_grad(const Sizes& z, const Linear& linear) { return matmul_kernel(z.compute, 1, z.tokens, linear.in, linear.out); }

namespace {

std::string end_of_name(const Linear& linear, const char* what) {
  return *linear.name == '\0' ? what : std::string(linear.name) + "." + what;
}

}  // namespace

bool wants_weight(const WantedGradients& wanted, const Linear& linear) { return wanted.of(end_of_name(linear, "weight")); }
bool wants_bias(const WantedGradients& wanted, const Linear& linear) { return linear.bias && wanted.of(end_of_name(linear, "bias")); }

void add_linear_weight_grad(const Sizes& z, const WantedGradients& wanted, const Linear& linear, Work& work) {
  const std::int64_t update = 2 * size_of(z.gradient);
  if (wants_weight(wanted, linear)) {
    Kernel kernel = matmul_kernel(z.compute, 1, linear.out, linear.in, z.tokens);
    kernel.bytes = Bytes(z.tokens * (linear.in + linear.out) * z.e + linear.in * linear.out * update);
    work.kernels.push_back(kernel);
  }
  if (!wants_bias(wanted, linear)) return;
  work.kernels.push_back(stream_kernel(z.compute, z.tokens * linear.out, 1, Bytes(z.tokens * linear.out * z.e + linear.out * update)));
}

std::int64_t norm_vectors(const ModelShape& model) { return model.family == Family::Gpt ? 2 : 1; }

std::int64_t wanted_norm_vectors(const ModelShape& model, const WantedGradients& wanted) {
  return (wanted.of("norm.weight") ? 1 : 0) + (model.family == Family::Gpt && wanted.of("norm.bias") ? 1 : 0);
}

Bytes norm_sums_bytes(const ModelShape& model, const Sizes& z) { return Bytes(4 * norm_vectors(model) * z.h); }

Kernel norm_forward(const ModelShape& model, const Sizes& z) {
  const std::int64_t bytes = 2 * z.tokens * z.h * z.e + 4 * norm_statistics(model) * z.tokens + norm_vectors(model) * z.h * z.e;
  return stream_kernel(z.compute, z.tokens * z.h, kNormForwardFlops, Bytes(bytes));
}

Kernel norm_input_grad(const ModelShape& model, const Sizes& z) {
  const std::int64_t bytes = 3 * z.tokens * z.h * z.e + 4 * norm_statistics(model) * z.tokens + z.h * z.e;
  return stream_kernel(z.compute, z.tokens * z.h, kNormBackwardFlops, Bytes(bytes) + norm_sums_bytes(model, z));
}

Kernel norm_weight_grad(const Sizes& z, std::int64_t vectors) {
  const std::int64_t elements = vectors * z.h;
  return stream_kernel(z.gradient, elements, 1, Bytes(elements * (4 + 2 * size_of(z.gradient))));
}

void SavedSet::add(std::string name, DType type, std::vector<std::int64_t> shape) {
  layout_.tensors.push_back({std::move(name), type, std::move(shape), Bytes(end_)});
  end_ += align_tensor(layout_.tensors.back().bytes().value);
}

void ForwardTensors::add_norm(const ModelShape& model, const Sizes& z, bool statistics, bool output) {
  if (norm_statistics(model) == 2) when(statistics).add("norm.mean", DType::Fp32, {z.b, z.s});
  when(statistics).add("norm.rstd", DType::Fp32, {z.b, z.s});
  when(output).add("norm.out", z.compute, {z.b, z.s, z.h});
}

void ForwardTensors::move_into(SegmentCost& cost) {
  cost.saved_bytes = saved_.bytes(), cost.passing_bytes = passing_.bytes();
  cost.saved = std::move(saved_).layout(), cost.passing = std::move(passing_).layout();
}

Bytes transient_bytes(const std::vector<Transient>& tensors) {
  std::int64_t sum = 0;
  for (const Transient& tensor : tensors) sum += align_tensor(tensor.elements * tensor.size);
  return Bytes(sum);
}

}  // namespace steptwin
