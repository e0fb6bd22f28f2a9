// Return codes of the CUDA runtime become EnvironmentError (Device): "cannot WHAT: reason".
#pragma once

namespace steptwin {

// `code`: a cudaError_t.
void cuda_check(int code, const char* what);

}  // namespace steptwin
