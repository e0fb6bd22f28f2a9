// A thread per rank issues: each takes what its own rank can do next, and whatever transfer is due. One lock guards the step machine and
// what hangs on it; an op's calls into LibTorch, CUDA and NCCL are made outside it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "exec/cuda/cuda_check.h"
#include "exec/cuda/cuda_execution.h"
#include "schedule/base/error.h"

namespace steptwin {

void CudaExecution::drive() {
  for (Rank& rank : ranks_) rank.serving = true;
  std::vector<std::thread> threads;
  try {
    for (std::uint32_t r = 1; r < ranks_.size(); ++r) threads.emplace_back([this, r] { serve(r); });
  } catch (const std::system_error& error) {
    const std::lock_guard lock(mutex_);
    failure_ = std::make_exception_ptr(EnvironmentError(
        EnvironmentError::Kind::Device, fmt::format("issuing thread {} cannot be started: {}", threads.size() + 1, error.what()),
        "ulimit -u and the control group limit their number"));
  }
  if (!ranks_.empty()) serve(0);
  for (std::thread& thread : threads) thread.join();
  if (failure_) std::rethrow_exception(failure_);
}

void CudaExecution::serve(std::uint32_t rank) {
  std::unique_lock lock(mutex_);
  try {
    cuda_check(cudaSetDevice(ranks_[rank].device), "select the device");
    while (!over() && !machine_->finished(rank)) go_on(rank, lock);
  } catch (...) {
    if (!failure_ || rank < failed_rank_) failure_ = std::current_exception(), failed_rank_ = rank;
  }
  ranks_[rank].serving = false;
  changed_.notify_all();
}

void CudaExecution::go_on(std::uint32_t rank, std::unique_lock<std::mutex>& lock) {
  check_deadline();
  machine_->settle();
  ranks_[rank].device_waits = false;
  if (const auto transfer = transferring_ ? std::nullopt : machine_->next_transfer()) {
    transferring_ = true;
    put(*transfer, lock);
    transferring_ = false;
    ++transfers_;
    machine_->settle();
    changed_.notify_all();
  } else if (const auto local = machine_->next_local(rank)) {
    put(*local, lock);
  } else if (!machine_->issue(rank, StepMachine::RunAhead::Free)) {
    wait_for_others(rank, lock);
  }
}

// Only a transfer unblocks another rank. When all threads have looked since the last one and none waits for the device, nothing can go on.
void CudaExecution::wait_for_others(std::uint32_t rank, std::unique_lock<std::mutex>& lock) {
  if (ranks_[rank].device_waits) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(5));
    lock.lock();
    return;
  }
  ranks_[rank].idle_at = transfers_;
  stuck_ = !transferring_ && std::all_of(ranks_.begin(), ranks_.end(),
                                         [this](const Rank& r) { return !r.serving || (r.idle_at && *r.idle_at == transfers_); });
  if (stuck_) {
    changed_.notify_all();
  } else {
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  ranks_[rank].idle_at.reset();
}

}  // namespace steptwin
