// A thread per rank issues: each takes what its own rank can do next, and whatever transfer is due. One lock guards the step machine and
// what hangs on it; an op's calls into LibTorch, CUDA and NCCL are made outside it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "exec/cuda/cuda_check.h"
#include "exec/cuda/cuda_execution.h"
#include "schedule/base/error.h"

namespace steptwin {

namespace {

std::string lines_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

}  // namespace

void CudaExecution::drive() {
  for (Rank& rank : ranks_) rank.serving = true;
  std::vector<std::thread> threads;
  std::thread watcher;
  if (transport_->can_hang()) watcher = std::thread([this] { watch(); });
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
  driven_ = true;
  if (watcher.joinable()) watcher.join();
  if (failure_) std::rethrow_exception(failure_);
  if (!aborting_) return;
  if (options_.group != nullptr) options_.group->check();
  check_deadline();
}

// A kernel of NCCL that waits for another process for ever fills the streams behind it, and then the calls of the issuing threads block, with the
// lock held or not. So this thread takes no lock: when the run is over and they do not come back, it ends what is in flight, and if even that does
// not bring them back, the process.
void CudaExecution::watch() {
  using std::chrono::steady_clock;
  constexpr std::chrono::seconds kGrace{2}, kPatience{20};
  std::optional<steady_clock::time_point> since;
  std::thread aborter;
  while (!driven_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto moment = steady_clock::now();
    bool is_over = stopped() || (options_.deadline.count() > 0 && moment - progress_.load() > options_.deadline);
    try {
      if (options_.group != nullptr) options_.group->check();
      is_over = is_over || (options_.group != nullptr && options_.group->ending() != ProcessGroup::Ending::None);
    } catch (...) {
      is_over = true;
    }
    if (!is_over) continue;
    if (!since) since = moment;
    if (!aborting_ && moment - *since > kGrace) {
      aborting_ = true;
      aborter = std::thread([this] { transport_->abort(); });
    }
    if (moment - *since < kPatience) continue;
    fmt::print(stderr, "error: the device does not answer although its communicators were aborted; this process ends without it\n");
    std::_Exit(7);
  }
  if (aborter.joinable()) aborter.join();
}

// Throws when the run is over, for those who wait outside the lock.
void CudaExecution::look() const {
  if (options_.group != nullptr) options_.group->check();
  if (aborting_ || stopped()) throw EnvironmentError(EnvironmentError::Kind::Device, "the run ended while a transfer was waited for");
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
  check_host_work();
  if (options_.group != nullptr) {
    options_.group->check();
    options_.group->report(ProcessGroup::Activity::Working, machine_->ops_done(), [this] { return lines_of(positions()); });
  }
  machine_->settle();
  ranks_[rank].device_waits = false;
  if (const auto transfers = transferring_ ? std::vector<Task>() : machine_->next_transfers(); !transfers.empty()) {
    transferring_ = true;
    put(transfers, lock);
    transferring_ = false;
    ++transfers_;
    machine_->settle();
    changed_.notify_all();
  } else if (const auto local = machine_->next_local(rank)) {
    put({*local}, lock);
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
