// Which process a run belongs to, so that a run whose process has died can be told from one that still goes. Internal to traces/.
#pragma once

#include <sys/types.h>

#include <string>

namespace steptwin {

std::string host_name();

// "BOOT-ID PID-NAMESPACE START-TIME" of a process of this host; empty when there is no such process.
std::string process_identity(pid_t pid);

enum class Liveness { Alive, Dead, Unknown };
// Does the process `pid` still live that once had `identity` on this host? Unknown when it belongs to another pid namespace.
Liveness liveness_of(pid_t pid, const std::string& identity);

}  // namespace steptwin
