// Ctrl-C and SIGTERM. Outside a StopScope a signal ends the program at once (exit 130 or 143): there is nothing to keep.
// Inside one it sets the stop flag, so that the run can be marked interrupted; a second signal ends the program at once.
// The flag is the only global mutable state of steptwin: a signal handler can reach nothing else.
#pragma once

#include <atomic>

#include "cli/exit_code.h"

namespace steptwin {

void install_signal_handlers();  // SIGINT, SIGTERM as above; SIGPIPE ignored (writes report EPIPE)

class StopScope {
 public:
  StopScope();
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  const std::atomic<bool>& flag() const;
  bool stopped() const { return flag().load(std::memory_order_relaxed); }
  Exit exit_code() const;  // Interrupted or Terminated, by the signal that came
};

}  // namespace steptwin
