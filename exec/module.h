// Finds and loads the execution module. LibTorch and its BLAS read their thread settings when they are loaded, so those are set first:
//   OMP_NUM_THREADS, MKL_NUM_THREADS, OPENBLAS_NUM_THREADS = 1   one intra-op thread: bits depend on the number (specs/execution.md 9.2)
//   ONEDNN_MAX_CPU_ISA = AVX512_CORE   on an AVX-512 CPU, where it is set to less
//   OPENBLAS_CORETYPE = Haswell   on an AVX2 CPU and only where it is unset: OpenBLAS 0.3.21 takes new Xeons for Prescott, 3x slower
//   TORCH_CPP_LOG_LEVEL = FATAL   where it is unset: LibTorch throws its errors, it need not print them too; a process that waits for the
//   store of a run would print every attempt
// The CUDA module's also (specs/execution.md 7), each only where it is unset but the two whose other values are wrong here:
//   CUDA_DEVICE_MAX_CONNECTIONS = 32   lanes of several ranks never share a hardware queue
//   NCCL_NVLS_ENABLE = 0 (always)      multicast changes sums and can upset the GPUs of a shared host
//   NCCL_LAUNCH_ORDER_IMPLICIT = 1     host order is device order across communicators
// Looked for as libsteptwin_cpu.so or libsteptwin_cuda.so in $STEPTWIN_MODULE_DIR (only there when it is set), beside the executable, in ../lib/steptwin.
#pragma once

#include <memory>
#include <string>

#include "exec/backend.h"

namespace steptwin {

// A backend whose exceptions are ours on this side of the border: whatever the module throws comes out as EnvironmentError or
// InternalError. The module stays loaded until the process ends. Throws EnvironmentError (Device) saying what is missing and how to get it.
enum class BackendKind : std::uint8_t { Cpu, Cuda };
std::unique_ptr<Backend> load_backend(BackendKind kind);
inline std::unique_ptr<Backend> load_cpu_backend() { return load_backend(BackendKind::Cpu); }

// Path of the module, empty when there is none. For doctor.
std::string module_path(BackendKind kind);

}  // namespace steptwin
