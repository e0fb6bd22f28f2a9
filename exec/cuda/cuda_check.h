// Return codes of the CUDA runtime become EnvironmentError (Device): "cannot WHAT: reason".
#pragma once

#include <cuda_runtime_api.h>

namespace steptwin {

void cuda_check(cudaError_t code, const char* what);

}  // namespace steptwin
