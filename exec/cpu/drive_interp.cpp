#include "exec/cpu/execution.h"

namespace steptwin {
namespace {

void run_task(Execution& execution, const Task& task) {
  execution.machine().began(task);
  execution.work(task);
  execution.machine().ended(task);
}

}  // namespace

void drive_interp(Execution& execution) {
  StepMachine& machine = execution.machine();
  while (!machine.finished() && !execution.stopped()) {
    execution.check_run();
    machine.settle();
    if (const auto transfer = machine.next_transfer()) {
      if (!execution.open_remote(*transfer)) run_task(execution, *transfer);
    } else if (execution.finish_remote()) {
      continue;
    } else if (machine.issue(StepMachine::RunAhead::Bounded)) {
      continue;
    } else if (const auto local = machine.next_local()) {
      run_task(execution, *local);
    } else if (!machine.issue(StepMachine::RunAhead::Free) && !machine.finished()) {
      if (!execution.wait_for_others()) return;  // nothing can go on
    }
  }
}

}  // namespace steptwin
