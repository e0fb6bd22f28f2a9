// Finds and loads the execution module. LibTorch and its BLAS read their thread settings when they are loaded, so those are set first:
//   OMP_NUM_THREADS, MKL_NUM_THREADS, OPENBLAS_NUM_THREADS = 1   one intra-op thread: bits depend on the number (specs/execution.md 9.2)
//   OPENBLAS_CORETYPE = Haswell   on an AVX2 CPU and only where it is unset: OpenBLAS 0.3.21 takes new Xeons for Prescott, 3x slower
// Looked for as libsteptwin_cpu.so in $STEPTWIN_MODULE_DIR (only there when it is set), beside the executable, in ../lib/steptwin.
#pragma once

#include <memory>
#include <string>

#include "exec/backend.h"

namespace steptwin {

// A backend whose exceptions are ours on this side of the border: whatever the module throws comes out as EnvironmentError or
// InternalError. The module stays loaded until the process ends. Throws EnvironmentError (Device) saying what is missing and how to get it.
std::unique_ptr<Backend> load_cpu_backend();

// Path of the module, empty when there is none. For doctor.
std::string cpu_module_path();

}  // namespace steptwin
