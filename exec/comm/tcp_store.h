// KvStore over c10d's TCPStore. Every call runs on a thread of the store's own, so that none blocks its caller for longer than a limit:
// whatever listens at the other end, and whether or not that host still lives.
#pragma once

#include <chrono>
#include <memory>

#include "exec/kv_store.h"
#include "exec/launch.h"

namespace steptwin {

// Serves the store when the launch says that this process does. limit: for the connection, and for any later call (10 s at least, 30 s at most).
// Throws EnvironmentError (Device).
std::unique_ptr<KvStore> tcp_store(const Launch& launch, std::chrono::milliseconds limit);

}  // namespace steptwin
