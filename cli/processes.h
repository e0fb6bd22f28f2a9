// execute as one of several processes of torchrun, mpirun or srun: coming together, and who says what. Process 0 predicts, stores and
// prints; the others run their rank, hand their part to it, and end with its exit code.
#pragma once

#include <memory>

#include "cli/exit_code.h"
#include "cli/options.h"
#include "exec/backend.h"
#include "exec/launch.h"
#include "exec/process_group.h"

namespace steptwin {

// By the variables of this process' environment; see exec/launch.h.
Launch launch_of_process();

// Usage errors: what does not go with several processes.
void refuse_for_processes(const Options& options, const Launch& launch);

// All processes must be about to run `digest` with these options. Waits for them as long as --timeout says, else a minute.
std::unique_ptr<ProcessGroup> join_processes(const Launch& launch, Backend& backend, const std::string& digest,
                                             const ExecuteOptions& options);

// What process 0 tells the others: Start, or how the run ends.
void tell_to_start(ProcessGroup& group);
void tell_exit(ProcessGroup& group, Exit exit);

// Any process but 0, from its start to its exit code.
Exit follow(ProcessGroup& group, Backend& backend, const Schedule& schedule, ExecuteOptions options);

}  // namespace steptwin
