// The CUDA rows of the conformance suite; takes the place of backends.cpp in conformance_cuda.
#include <cuda_runtime_api.h>

#include <ostream>

#include "exec/cuda/cuda_execution.h"
#include "tests/conformance/backends.h"

namespace steptwin::test {
namespace {

std::string no_gpu() {
  int count = 0;
  const cudaError_t state = cudaGetDeviceCount(&count);
  if (state == cudaSuccess && count > 0) return {};
  return std::string("no GPU: ") + cudaGetErrorString(state);
}

BackendUnderTest cuda(const char* name, TransportChoice transport, std::uint32_t partitions) {
  return {name, BackendUnderTest::Kind::Executor,
          [=](const Schedule& schedule, ExecuteOptions options) {
            options.mode = ExecutionMode::Streams;
            options.transport = transport;
            options.partitions = partitions;
            return CudaExecution(schedule, options).run();
          },
          no_gpu()};
}

}  // namespace

std::vector<BackendUnderTest> executors() {
  return {cuda("local", TransportChoice::Local, 0), cuda("partitions", TransportChoice::Local, 8)};
}
std::vector<BackendUnderTest> backends() { return executors(); }
std::vector<BackendUnderTest> one_rank_backends() {
  std::vector<BackendUnderTest> rows = executors();
  rows.push_back(cuda("nccl", TransportChoice::Nccl, 0));
  return rows;
}

void PrintTo(const BackendUnderTest& backend, std::ostream* out) { *out << backend.name; }

}  // namespace steptwin::test
