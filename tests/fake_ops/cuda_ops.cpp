// The fake ops on device memory: operands come to the host over the op's own stream, are worked on there, and go back.
#include <cuda_runtime_api.h>

#include <vector>

#include "exec/cuda/cuda_check.h"
#include "exec/cuda/lane_guard.h"
#include "tests/fake_ops/fake_ops.h"

namespace steptwin {

namespace {
thread_local cudaStream_t current_stream = nullptr;
}

struct LaneGuard::Implementation {};
LaneGuard::LaneGuard(StreamHandle stream, int) { current_stream = stream; }
LaneGuard::~LaneGuard() { current_stream = nullptr; }

void run_compute(const Schedule& schedule, const Program& program, OpId op, std::span<const BoundAccess> operands, const StepContext& step) {
  if (step.device < 0) return fake_compute(schedule, program, op, operands);  // a host op: no calls into CUDA
  std::vector<std::vector<std::byte>> host;
  std::vector<BoundAccess> staged(operands.begin(), operands.end());
  for (BoundAccess& access : staged) {
    host.emplace_back(static_cast<std::size_t>(access.bytes));
    cuda_check(cudaMemcpyAsync(host.back().data(), access.data, host.back().size(), cudaMemcpyDefault, current_stream), "read an operand");
    access.data = host.back().data();
  }
  cuda_check(cudaStreamSynchronize(current_stream), "read the operands");
  fake_compute(schedule, program, op, staged);
  for (std::size_t i = 0; i < staged.size(); ++i) {
    if (operands[i].mode != AccessMode::Write && operands[i].mode != AccessMode::Update) continue;
    cuda_check(cudaMemcpyAsync(operands[i].data, host[i].data(), host[i].size(), cudaMemcpyDefault, current_stream), "write an operand");
  }
  cuda_check(cudaStreamSynchronize(current_stream), "write the operands");
}

}  // namespace steptwin
