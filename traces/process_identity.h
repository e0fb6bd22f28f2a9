// Which process this is and whether one still lives: of a run in the store, of the others that take part in a run.
#pragma once

#include <sys/types.h>

#include <string>

namespace steptwin {

std::string host_name();

// "BOOT-ID PID-NAMESPACE START-TIME" of a process of this host; empty when there is no such process, or it has ended and is not yet reaped.
std::string process_identity(pid_t pid);

enum class Liveness { Alive, Dead, Unknown };
// Does the process `pid` still live that once had `identity` on this host? Unknown when it belongs to another pid namespace.
Liveness liveness_of(pid_t pid, const std::string& identity);

}  // namespace steptwin
