#include "exec/cuda/probe.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "exec/cuda/cuda_check.h"

namespace steptwin {
namespace {

constexpr int kSamples = 200;
constexpr std::size_t kBlock = std::size_t{64} << 20;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void add(std::vector<RunFact>& facts, const std::string& name, std::vector<std::int64_t> samples) {
  std::sort(samples.begin(), samples.end());
  facts.push_back({name + "_ns", "", "ns", static_cast<double>(samples[samples.size() / 2])});
  facts.push_back({name + "_p90_ns", "", "ns", static_cast<double>(samples[samples.size() * 9 / 10])});
}

// Host time of a call; `between` empties the stream so that none waits for room in its queue.
template <class Call, class Between>
std::vector<std::int64_t> host_times(int samples, Call call, Between between) {
  std::vector<std::int64_t> times;
  for (int i = -samples / 10; i < samples; ++i) {
    const std::int64_t begin = now();
    call();
    if (i >= 0) times.push_back(now() - begin);
    between();
  }
  return times;
}

}  // namespace

std::vector<RunFact> probe_device(int device, const std::function<void()>& eager_op) {
  cuda_check(cudaSetDevice(device), "select the device");
  std::vector<RunFact> facts;
  const auto drain = [] { cuda_check(cudaDeviceSynchronize(), "wait for the device"); };
  const auto nothing = [] {};
  add(facts, "kernel_launch", host_times(kSamples, eager_op, drain));
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "ask for the device's memory");
  facts.push_back({"context_bytes", "", "B", static_cast<double>(total - free)});
  cudaStream_t stream = nullptr;
  cudaEvent_t first = nullptr, second = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
  cuda_check(cudaEventCreate(&first), "create an event");
  cuda_check(cudaEventCreate(&second), "create an event");
  add(facts, "event_record", host_times(kSamples, [&] { cuda_check(cudaEventRecord(first, stream), "record an event"); }, nothing));
  add(facts, "stream_wait", host_times(kSamples, [&] { cuda_check(cudaStreamWaitEvent(stream, first, 0), "wait for an event"); }, nothing));
  drain();
  add(facts, "event_query", host_times(kSamples, [&] { cuda_check(cudaEventQuery(first), "ask an event"); }, nothing));
  std::vector<std::int64_t> gaps;
  for (int i = 0; i < kSamples; ++i) {
    cuda_check(cudaEventRecord(first, stream), "record an event");
    cuda_check(cudaEventRecord(second, stream), "record an event");
    cuda_check(cudaEventSynchronize(second), "wait for an event");
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, first, second), "read an event's time");
    gaps.push_back(static_cast<std::int64_t>(static_cast<double>(ms) * 1e6));
  }
  add(facts, "event_gap", gaps);
  add(facts, "device_allocation", host_times(20, [] {
        void* data = nullptr;
        cuda_check(cudaMalloc(&data, kBlock), "take device memory");
        cuda_check(cudaFree(data), "give device memory back");
      }, nothing));
  add(facts, "pinned_allocation", host_times(20, [] {
        void* data = nullptr;
        cuda_check(cudaHostAlloc(&data, kBlock, cudaHostAllocDefault), "take pinned memory");
        cuda_check(cudaFreeHost(data), "give pinned memory back");
      }, nothing));
  cudaEventDestroy(first), cudaEventDestroy(second), cudaStreamDestroy(stream);
  return facts;
}

// NVML by name: it comes with the driver, and the module must load where there is none.
double multiprocessor_clock(int device) {
  void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 0;
  using Handle = void*;
  const auto function = [library](const char* name) { return ::dlsym(library, name); };
  const auto init = reinterpret_cast<int (*)()>(function("nvmlInit_v2"));
  const auto shut = reinterpret_cast<int (*)()>(function("nvmlShutdown"));
  const auto find = reinterpret_cast<int (*)(const char*, Handle*)>(function("nvmlDeviceGetHandleByPciBusId_v2"));
  const auto clock = reinterpret_cast<int (*)(Handle, int, unsigned*)>(function("nvmlDeviceGetClockInfo"));
  constexpr int kMultiprocessors = 1;  // NVML_CLOCK_SM
  char bus[32] = {};
  Handle handle = nullptr;
  unsigned mhz = 0;
  if (init != nullptr && shut != nullptr && find != nullptr && clock != nullptr && init() == 0) {
    const bool known = cudaDeviceGetPCIBusId(bus, sizeof bus, device) == cudaSuccess && find(bus, &handle) == 0;
    if (!known || clock(handle, kMultiprocessors, &mhz) != 0) mhz = 0;
    shut();
  }
  ::dlclose(library);
  return mhz;
}

}  // namespace steptwin
