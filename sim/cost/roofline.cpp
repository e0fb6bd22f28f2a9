#include "sim/cost/roofline.h"

#include <algorithm>

#include "sim/cost/rates.h"

namespace steptwin {
namespace {

bool on_matrix_units(const Device& device, const Kernel& kernel) {
  return kernel.kind != Kernel::Kind::Stream && device.matrix_peak.contains(kernel.dtype);
}

double efficiency(const Device& device, const Kernel& kernel) {
  const bool attention = kernel.kind == Kernel::Kind::Attention && !device.attention_efficiency.steps.empty();
  return (attention ? device.attention_efficiency : device.matrix_efficiency).at(real(kernel.flops));
}

double flops_seconds(const Device& device, const Kernel& kernel) {
  if (kernel.flops.value <= 0) return 0;
  if (!on_matrix_units(device, kernel)) return real(kernel.flops) / needed_rate(device.vector_peak.value, "vector peak", "a compute op");
  const double peak = needed_rate(device.matrix_peak.at(kernel.dtype).value, "matrix peak", "a compute op");
  return real(kernel.flops) / (peak * needed_rate(efficiency(device, kernel), "matrix efficiency", "a compute op"));
}

double memory_seconds(const Device& device, Bytes bytes) {
  if (bytes.value <= 0) return 0;
  const double bandwidth = needed_rate(device.memory_bandwidth.value, "device memory bandwidth", "a compute op or copy");
  return real(bytes) / (bandwidth * needed_rate(device.memory_efficiency.at(real(bytes)), "memory efficiency", "a compute op or copy"));
}

}  // namespace

double kernel_seconds(const Device& device, const Kernel& kernel) {
  return std::max(flops_seconds(device, kernel), memory_seconds(device, kernel.bytes));
}

double work_seconds(const Device& device, const Work& work) {
  double sum = 0;
  for (const Kernel& kernel : work.kernels) sum += kernel_seconds(device, kernel);
  return sum;
}

double device_copy_seconds(const Device& device, Bytes read, Bytes written) { return memory_seconds(device, read + written); }

}  // namespace steptwin
