#include "exec/cuda/sm_partition.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "exec/cuda/cuda_check.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

constexpr std::uint32_t kGranularity = 8;  // multiprocessors, compute capability 9.0 on (CUDA driver API, green contexts)

// The driver's functions by name: the module links the runtime only, so that it loads where no driver is.
template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion(name, &function, 13000, cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("the driver has no {}", name),
                           "--partition needs a driver of CUDA 13 or newer");
  return reinterpret_cast<Function>(function);
}

void driver_check(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver_function<decltype(&cuGetErrorString)>("cuGetErrorString")(code, &text);
  throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("cannot {}: {}", what, text == nullptr ? "unknown error" : text));
}

}  // namespace

struct SmPartitions::Implementation {
  std::vector<CUgreenCtx> contexts;
  std::vector<std::uint32_t> multiprocessors;
};

SmPartitions::SmPartitions(int device, std::uint32_t parts) : implementation_(std::make_unique<Implementation>()) {
  cuda_check(cudaSetDevice(device), "select the device");
  cuda_check(cudaFree(nullptr), "start the device");  // creates the primary context
  CUdevice handle{};
  driver_check(driver_function<decltype(&cuDeviceGet)>("cuDeviceGet")(&handle, device), "find the device");
  CUdevResource all{};
  driver_check(driver_function<decltype(&cuDeviceGetDevResource)>("cuDeviceGetDevResource")(handle, &all, CU_DEV_RESOURCE_TYPE_SM),
               "ask for the device's multiprocessors");
  const std::uint32_t each = all.sm.smCount / parts / kGranularity * kGranularity;
  if (each == 0)
    throw EnvironmentError(EnvironmentError::Kind::Device,
                           fmt::format("{} multiprocessors cannot be split into {} parts", all.sm.smCount, parts),
                           fmt::format("--partition {} at most", all.sm.smCount / kGranularity));
  std::vector<CUdevResource> groups(parts);
  unsigned count = parts;
  CUdevResource rest{};
  driver_check(
      driver_function<decltype(&cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount")(groups.data(), &count, &all, &rest, 0, each),
      "split the multiprocessors");
  if (count < parts)
    throw EnvironmentError(EnvironmentError::Kind::Device,
                           fmt::format("the driver gives {} parts of {} multiprocessors, not {}", count, each, parts),
                           fmt::format("--partition {}", count));
  for (CUdevResource& group : groups) {
    CUdevResourceDesc description{};
    driver_check(driver_function<decltype(&cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc")(&description, &group, 1),
                 "describe a partition");
    CUgreenCtx context{};
    driver_check(
        driver_function<decltype(&cuGreenCtxCreate)>("cuGreenCtxCreate")(&context, description, handle, CU_GREEN_CTX_DEFAULT_STREAM),
        "create a green context");
    implementation_->contexts.push_back(context);
    CUdevResource given{};
    driver_check(driver_function<decltype(&cuGreenCtxGetDevResource)>("cuGreenCtxGetDevResource")(context, &given, CU_DEV_RESOURCE_TYPE_SM),
                 "read a partition back");
    implementation_->multiprocessors.push_back(given.sm.smCount);
  }
}

SmPartitions::~SmPartitions() {
  const auto destroy = driver_function<decltype(&cuGreenCtxDestroy)>("cuGreenCtxDestroy");
  for (CUgreenCtx context : implementation_->contexts) destroy(context);
}

cudaStream_t SmPartitions::stream(std::uint32_t part, int priority) const {
  CUstream stream{};
  driver_check(driver_function<decltype(&cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate")(&stream, implementation_->contexts.at(part),
                                                                                            CU_STREAM_NON_BLOCKING, priority),
               "create a stream in a green context");
  return stream;
}

std::uint32_t SmPartitions::multiprocessors(std::uint32_t part) const { return implementation_->multiprocessors.at(part); }

}  // namespace steptwin
