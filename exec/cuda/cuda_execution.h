// One execution of a schedule on GPUs. A thread per rank issues in the order the step machine allows (cuda_drive.cpp); an op "ends" for the
// machine when it has been put into its stream, and the device does the waiting. Per rank: a stream per lane, an event pair per op
// (reached, ended), a pool of memory whose foreign uses end when their events are seen complete at a later allocation. At most two
// repetitions are in flight. One of several processes (ExecuteOptions::group): it runs its rank alone, on a GPU of its own, over NCCL.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>

#include "exec/backend.h"
#include "exec/cpu/recorder.h"
#include "exec/cpu/step_machine.h"
#include "exec/cpu/training_state.h"
#include "exec/cuda/cuda_memory.h"
#include "exec/cuda/handles.h"
#include "exec/cuda/sm_partition.h"
#include "exec/cuda/timeline.h"
#include "exec/cuda/transport.h"
#include "exec/process_group.h"

namespace steptwin {

class CudaExecution {
 public:
  // The schedule must be sound (verify). Throws EnvironmentError (Device, Memory), InternalError.
  CudaExecution(const Schedule& schedule, const ExecuteOptions& options);
  ~CudaExecution();
  CudaExecution(const CudaExecution&) = delete;
  CudaExecution& operator=(const CudaExecution&) = delete;

  // A deadlock or the stop flag is an outcome of the trace. Throws EnvironmentError: an op failed (names rank and op), or the deadline
  // passed.
  ExecutionResult run();

 private:
  static constexpr std::uint32_t kSlots = 2;  // repetitions in flight
  struct OpEvents {
    EventHandle reached = nullptr, ended = nullptr;
  };
  struct Rank {
    int device = 0;
    std::vector<StreamHandle> lanes;
    std::unique_ptr<CudaMemory> memory;
    std::array<std::vector<OpEvents>, kSlots> events;  // [slot][op]
    std::array<std::vector<std::int64_t>, kSlots> issues, host_ends;
    std::array<EventHandle, kSlots> base{}, whole{};  // begin and end of a repetition
    std::array<std::int64_t, kSlots> base_time{};     // ns since the start of the run
    std::vector<EventHandle> tails;                   // [lane]
    EventHandle opened = nullptr;
    std::uint32_t harvested = 0;  // repetitions whose times have been read
    std::uint32_t begun = 0;
    std::deque<std::pair<EventHandle, std::vector<BufferPool::Block*>>> uses;  // to end when the event has happened
    bool device_waits = false;             // its host has asked the device in vain since it last looked around
    bool serving = false;                  // its thread has work left
    std::optional<std::uint64_t> idle_at;  // its thread waits and has seen this many transfers
  };

  void set_up_rank(std::uint32_t index);
  void make_streams(Rank& rank, const Program& program, std::uint32_t index);
  StepMachine::Hooks hooks();
  void begin_step(std::uint32_t index, std::uint32_t step);
  void step_enqueued(std::uint32_t index, std::uint32_t step, const OpTimes* times);
  bool harvest(std::uint32_t index, std::uint32_t step);
  bool has_happened(std::uint32_t rank, EventHandle event);
  bool await(EventHandle event);
  void end_uses(Rank& rank);
  void drive();
  void serve(std::uint32_t rank);
  void go_on(std::uint32_t rank, std::unique_lock<std::mutex>& lock);
  void wait_for_others(std::uint32_t rank, std::unique_lock<std::mutex>& lock);
  void watch();
  void look() const;
  bool over() const {
    return failure_ || stuck_ || stopped() || aborting_ || (options_.group != nullptr && options_.group->ending() != ProcessGroup::Ending::None);
  }
  void put(const std::vector<Task>& tasks, std::unique_lock<std::mutex>& lock);
  void save();
  std::vector<RunFact> facts() const;
  void put_local(const Task& task);
  void put_transfers(const std::vector<Task>& tasks);
  std::optional<Transfer> transfer_of(const Task& task, const std::vector<TransferEnd>& ends) const;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> members_of(const Task& task) const;
  void compute(const Task& task, OpId id, StreamHandle stream);
  void copy(const Op& op, const Task& task, StreamHandle stream);
  void announce(std::uint32_t rank, std::uint32_t op) const;
  template <class Work>
  void at_op(std::uint32_t rank, std::uint32_t op, Work work) const;
  EventHandle ended(std::uint32_t rank, std::uint32_t op) const { return ranks_[rank].events[machine_->step(rank) % kSlots][op].ended; }
  OpId id_of(std::uint32_t rank, std::uint32_t op) const;
  const Program& program(std::uint32_t rank) const;
  void check_deadline();
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }
  std::vector<std::string> positions() const;
  Outcome outcome() const;
  std::int64_t now() const;

  const Schedule& schedule_;
  const ExecuteOptions& options_;
  Matching matching_;
  std::vector<InstructionList> lists_;
  std::vector<CommInstances> comms_;
  std::vector<std::string> labels_;  // [op] for NVTX
  std::unique_ptr<SmPartitions> partitions_;
  std::vector<Rank> ranks_;
  std::vector<RankMemory> memories_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<TrainingState> training_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<StepMachine> machine_;
  std::chrono::steady_clock::time_point start_;
  std::atomic<std::chrono::steady_clock::time_point> progress_;

  // Guards all of the above while threads issue, except what one op owns while it is put into its stream.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool transferring_ = false;             // transfers are put one at a time, in the order in which their last members arrived
  std::uint64_t transfers_ = 0;           // put so far
  bool stuck_ = false;                    // every thread waits for another
  std::exception_ptr failure_;            // of the lowest rank
  std::uint32_t failed_rank_ = 0;
  std::atomic<bool> aborting_{false};     // set by watch(), which takes no lock
  std::atomic<bool> driven_{false};       // all issuing threads have ended
  std::int64_t put_time_ = 0, puts_ = 0;  // ns, ops: what putting ops into their streams costs the host
};

}  // namespace steptwin
