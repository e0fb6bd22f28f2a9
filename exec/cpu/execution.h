// One execution of a schedule on the CPU: sets up memory, parameters and data, drives the step machine, gathers the result.
//   interp    one thread does everything: transfers as soon as they can happen, else the host's next ops, else the compute op that has been
//             ready longest. Deterministic in its data, and one op at a time.
//   threads   the calling thread issues; a worker per rank and lane does what its lane reaches; at most `compute_slots` compute ops at a time.
// Both give the same bits: every op's operands and every reduction order are fixed by the schedule.
// Torch-free: compute ops go through exec/ops/compute.h.
#pragma once

#include <memory>

#include "exec/backend.h"
#include "exec/cpu/recorder.h"
#include "exec/cpu/step_machine.h"
#include "exec/cpu/training_state.h"

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
  // Does the work of a task: reads and writes buffers only. Throws EnvironmentError naming rank and op.
  void work(const Task& task);
  bool takes_slot(const Task& task) const;
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }
  // Throws when the slowest rank has been in one step for longer than the deadline.
  void check_deadline();

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
  Outcome outcome() const;
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
  std::chrono::steady_clock::time_point start_, step_start_;
  std::uint32_t slowest_step_ = 0;
};

// The drivers: return when the machine has finished, nothing can go on, or the run was stopped.
void drive_interp(Execution& execution);
void drive_threads(Execution& execution);

ExecutionResult execute_on_cpu(const Schedule& schedule, const ExecuteOptions& options);

}  // namespace steptwin
