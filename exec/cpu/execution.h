// One execution of a schedule on the CPU: sets up memory, parameters and data, drives the step machine, gathers the result.
//   interp    one thread does everything: transfers as soon as they can happen, else the host's next ops, else the compute op that has been
//             ready longest. Deterministic in its data, and one op at a time.
//   threads   the calling thread issues; a worker per rank and lane does what its lane reaches; at most `compute_slots` compute ops at a time.
// Both give the same bits: every op's operands and every reduction order are fixed by the schedule.
// One of several processes (ExecuteOptions::group, interp): it runs its rank alone; a transfer with others goes over their store.
// Torch-free: compute ops go through exec/ops/compute.h.
#pragma once

#include <list>
#include <memory>

#include "exec/backend.h"
#include "exec/comm/remote_transfer.h"
#include "exec/cpu/recorder.h"
#include "exec/cpu/step_machine.h"
#include "exec/cpu/training_state.h"
#include "exec/process_group.h"

namespace steptwin {

class Execution {
 public:
  // The schedule must be sound (verify). Throws InternalError when the lowering does not pass its checks.
  Execution(const Schedule& schedule, const ExecuteOptions& options);

  // A deadlock or the stop flag is an outcome of the trace. Throws EnvironmentError: an op failed (names rank and op), or the deadline passed.
  ExecutionResult run();

  // For the drivers.
  StepMachine& machine() { return *machine_; }
  const ExecuteOptions& options() const { return options_; }
  const Schedule& schedule() const { return schedule_; }
  // What a run leaves: resident buffers, by rank of the matching.
  const std::vector<RankMemory>& memories() const { return memories_; }
  // Does the work of a task: reads and writes buffers only. Throws EnvironmentError naming rank and op.
  void work(const Task& task);
  bool takes_slot(const Task& task) const;
  // By a signal, or because the processes of the run end it.
  bool stopped() const { return stopped_here() || (options_.group != nullptr && options_.group->ending() != ProcessGroup::Ending::None); }
  // Throws when the slowest rank has been in one step for longer than the deadline, or another process has failed.
  void check_run();
  // A transfer with other processes is opened and goes on by itself: its lane waits, others need not. False: all its members are here.
  bool open_remote(const Task& task);
  bool finish_remote();  // ends one open transfer if its data has moved
  bool wait_for_others();  // a moment; false: nothing is open

 private:
  void allocate_resident_buffers();
  void announce(std::uint32_t rank, std::uint32_t op) const;
  // What `work` throws gets the op's name.
  template <class Work>
  void at_op(std::uint32_t rank, std::uint32_t op, Work work) const;
  void work_local(const Task& task);
  void work_transfer(const Task& task);
  void copy(const Op& op, const Task& task);
  OpId id_of(std::uint32_t rank, std::uint32_t op) const;
  StepMachine::Hooks hooks();
  bool stopped_here() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }
  void report(ProcessGroup::Activity activity);
  void check_deadline();
  void drive();
  Outcome outcome() const;
  std::vector<std::string> positions() const;  // of the ranks of all processes
  std::int64_t now() const;

  const Schedule& schedule_;
  const ExecuteOptions& options_;
  Matching matching_;
  std::vector<InstructionList> lists_;  // [tables]
  std::vector<CommInstances> comms_;
  std::vector<RankMemory> memories_;
  std::unique_ptr<TrainingState> training_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<StepMachine> machine_;
  struct OpenTransfer {
    Task task;
    RemoteTransfer remote;
  };
  std::list<OpenTransfer> open_;  // with other processes
  std::uint32_t idle_ = 0;        // looks at them in vain, in a row
  std::chrono::steady_clock::time_point start_, step_start_;
  std::int64_t thread_start_ = 0;
  std::uint32_t slowest_step_ = 0;
};

// The drivers: return when the machine has finished, nothing can go on, or the run was stopped.
void drive_interp(Execution& execution);
void drive_threads(Execution& execution);

ExecutionResult execute_on_cpu(const Schedule& schedule, const ExecuteOptions& options);

}  // namespace steptwin
