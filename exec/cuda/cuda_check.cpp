#include "exec/cuda/cuda_check.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "schedule/base/error.h"

namespace steptwin {

void cuda_check(int result, const char* what) {
  const auto code = static_cast<cudaError_t>(result);
  if (code == cudaSuccess) return;
  const char* help = code == cudaErrorMemoryAllocation ? "a smaller model or batch, or fewer ranks on the device" : "";
  throw EnvironmentError(EnvironmentError::Kind::Device,
                         fmt::format("cannot {}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code)), help);
}

}  // namespace steptwin
