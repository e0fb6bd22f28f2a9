// The door of the CUDA execution module, and what it asks of LibTorch beside the layers.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include "exec/comm/tcp_store.h"
#include "exec/cpu/plain_model.h"
#include "exec/cuda/cuda_check.h"
#include "exec/cuda/cuda_execution.h"
#include "exec/cuda/lane_guard.h"
#include "exec/cuda/probe.h"
#include "exec/environment_json.h"
#include "schedule/base/error.h"

namespace steptwin {

struct LaneGuard::Implementation {
  Implementation(cudaStream_t stream, int device)
      : guard(c10::cuda::getStreamFromExternal(stream, static_cast<c10::DeviceIndex>(device))) {}
  c10::cuda::CUDAStreamGuard guard;
};
LaneGuard::LaneGuard(cudaStream_t stream, int device) : implementation_(std::make_unique<Implementation>(stream, device)) {}
LaneGuard::~LaneGuard() = default;

namespace {

// The switches in force, then what device and libraries say of themselves.
std::string environment_json() {
  std::string json = "{\"variables\": " +
                     environment_variables_json({"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "NCCL_NVLS_ENABLE",
                                                 "NCCL_LAUNCH_ORDER_IMPLICIT", "PYTORCH_CUDA_ALLOC_CONF"}) +
                     ", \"library\": " + library_versions();
  int count = 0, driver = 0, runtime = 0, nccl = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError(), count = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  ncclGetVersion(&nccl);
  json += fmt::format(", \"cuda_driver\": {}, \"cuda_runtime\": {}, \"nccl\": {}, \"devices\": [", driver, runtime, nccl);
  for (int d = 0; d < count; ++d) {
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, d), "ask for a device's properties");
    json += fmt::format("{}{{\"name\": \"{}\", \"multiprocessors\": {}, \"memory\": {}}}", d == 0 ? "" : ", ", properties.name,
                        properties.multiProcessorCount, properties.totalGlobalMem);
  }
  return json + "]}";
}

std::int64_t temporaries_peak() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  return stats.allocated_bytes[0].peak;
}

// What lies on device 0 beside the IR buffers (`facts` holds those): LibTorch's temporaries and its cache of them, and the rest: CUDA
// context, kernels, cuBLAS, cuDNN and NCCL, other processes too.
void add_memory_facts(std::vector<RunFact>& facts) {
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "ask for the device's memory");
  const std::int64_t temporaries = c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
  double buffers = 0;
  for (const RunFact& fact : facts)
    if (fact.name == "buffers_reserved_bytes") buffers = fact.value;
  facts.push_back({"temporaries_reserved_bytes", "temporaries", "B", static_cast<double>(temporaries)});
  facts.push_back({"context_and_libraries_bytes", "context, libs", "B",
                   static_cast<double>(total - free) - buffers - static_cast<double>(temporaries)});
}

class CudaBackend final : public Backend {
 public:
  CudaBackend() {
    int count = 0;
    const cudaError_t state = cudaGetDeviceCount(&count);
    if (state != cudaSuccess || count == 0)
      throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("no CUDA device can be used: {}", cudaGetErrorString(state)),
                             "--backend cpu, or a driver of CUDA 13 and a GPU (nvidia-smi shows them)");
    set_up_library(Determinism::None);
    at::globalContext().setAllowTF32CuBLAS(false);
    at::globalContext().setAllowBF16ReductionCuBLAS(false);
    c10::cuda::CUDACachingAllocator::init(count);
  }
  std::string name() const override { return "cuda"; }
  std::string environment() const override { return environment_json(); }
  ExecutionResult run(const Schedule& schedule, const ExecuteOptions& options) override {
    c10::cuda::CUDACachingAllocator::resetPeakStats(0);
    CudaExecution execution(schedule, options);
    ExecutionResult result = execution.run();
    add_memory_facts(result.facts);
    result.workspace_peak = temporaries_peak();
    result.environment_json = environment_json();
    return result;
  }
  std::vector<RunFact> probe() override {
    const at::Tensor value = at::zeros({256}, at::TensorOptions().device(at::kCUDA));
    return probe_device(0, [&value] { value.add_(1); });
  }
  std::unique_ptr<KvStore> connect(const Launch& launch, std::chrono::milliseconds limit) override { return tcp_store(launch, limit); }
  ExecutionResult run_plain(const Schedule& schedule, const ExecuteOptions& options) override { return run_plain_model(schedule, options); }
};

}  // namespace
}  // namespace steptwin

extern "C" steptwin::Backend* steptwin_backend() {
  static steptwin::CudaBackend backend;
  return &backend;
}
