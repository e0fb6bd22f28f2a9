// One lock guards the step machine; the work of tasks runs outside it. The order between ops on the same memory is the machine's, and every
// hand-over passes through the lock.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "exec/cpu/execution.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

class Crew {
 public:
  explicit Crew(Execution& execution)
      : execution_(execution), machine_(execution.machine()), free_slots_(std::max(execution.options().compute_slots, 1u)) {}

  void run() {
    try {
      issue_until_done();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      note_failure(std::current_exception(), 0);
    }
    stop_workers();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  struct Worker {
    std::condition_variable wake;
    std::deque<Task> tasks;
    std::thread thread;
  };

  void issue_until_done() {
    std::unique_lock lock(mutex_);
    while (!failure_ && !execution_.stopped()) {
      execution_.check_run();
      machine_.settle();
      dispatch();
      if (machine_.finished()) return;
      if (machine_.issue(StepMachine::RunAhead::Bounded)) continue;
      if (running_ == 0 && !machine_.issue(StepMachine::RunAhead::Free) && nothing_waits()) return;
      if (running_ > 0) changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
  }

  // After a failed attempt to issue, with no worker busy: is anything left to hand out?
  bool nothing_waits() {
    machine_.settle();
    dispatch();
    return running_ == 0;
  }

  void dispatch() {
    while (const auto transfer = machine_.next_transfer()) hand_out(*transfer);
    while (const auto local = machine_.next_local()) waiting_.push_back(*local);
    for (auto task = waiting_.begin(); task != waiting_.end();) {
      const bool slot = execution_.takes_slot(*task);
      if (slot && free_slots_ == 0) {
        ++task;
        continue;
      }
      if (slot) --free_slots_;
      hand_out(*task);
      task = waiting_.erase(task);
    }
  }

  void hand_out(const Task& task) {
    std::unique_ptr<Worker>& worker = workers_[{task.rank, task.lane}];
    if (!worker) start(worker);
    worker->tasks.push_back(task);
    ++running_;
    worker->wake.notify_one();
  }

  void start(std::unique_ptr<Worker>& place) {
    auto worker = std::make_unique<Worker>();
    try {
      worker->thread = std::thread([this, w = worker.get()] { serve(*w); });
    } catch (const std::system_error& error) {
      throw EnvironmentError(EnvironmentError::Kind::Device,
                             fmt::format("worker thread {} cannot be started: {}", workers_.size(), error.what()),
                             "--mode interp needs none; ulimit -u and the control group limit their number");
    }
    place = std::move(worker);
  }

  void serve(Worker& worker) {
    std::unique_lock lock(mutex_);
    for (;;) {
      worker.wake.wait(lock, [&] { return stop_ || !worker.tasks.empty(); });
      if (stop_) return;
      const Task task = worker.tasks.front();
      worker.tasks.pop_front();
      machine_.began(task);
      lock.unlock();
      std::exception_ptr failure;
      try {
        execution_.work(task);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      finish(task, failure);
    }
  }

  // The machine may throw too: an allocation fails, a worker cannot be started.
  void finish(const Task& task, const std::exception_ptr& failure) {
    --running_;
    if (execution_.takes_slot(task)) ++free_slots_;
    try {
      if (failure) std::rethrow_exception(failure);
      if (!failure_) go_on(task);
    } catch (...) {
      note_failure(std::current_exception(), task.rank);
    }
    changed_.notify_one();
  }

  // After stop_ the workers are being joined: none may be added.
  void go_on(const Task& task) {
    machine_.ended(task);
    if (stop_) return;
    machine_.settle();
    dispatch();
  }

  // The lowest rank's failure is the one reported.
  void note_failure(const std::exception_ptr& failure, std::uint32_t rank) {
    if (failure_ && failed_rank_ <= rank) return;
    failure_ = failure;
    failed_rank_ = rank;
  }

  void stop_workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      std::erase_if(workers_, [](const auto& entry) { return entry.second == nullptr; });  // could not be started
      for (auto& [place, worker] : workers_) worker->wake.notify_one();
    }
    for (auto& [place, worker] : workers_) worker->thread.join();
  }

  Execution& execution_;
  StepMachine& machine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::unique_ptr<Worker>> workers_;  // (rank, lane)
  std::vector<Task> waiting_;  // local ops that wait for a slot, longest ready first
  std::uint32_t free_slots_ = 0;
  std::uint32_t running_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::uint32_t failed_rank_ = 0;
};

}  // namespace

void drive_threads(Execution& execution) { Crew(execution).run(); }

}  // namespace steptwin
