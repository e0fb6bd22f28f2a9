#include "cli/signals.h"

#include <signal.h>
#include <unistd.h>

#include <initializer_list>

namespace steptwin {

namespace {

std::atomic<bool> stop_requested{false};
std::atomic<bool> stop_scope_open{false};
std::atomic<int> stop_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free, "signal handlers need lock-free flags");

extern "C" void handle_stop(int number) {
  if (!stop_scope_open.load() || stop_requested.exchange(true)) ::_exit(128 + number);
  stop_signal.store(number);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = handle_stop;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction old {};
    ::sigaction(number, nullptr, &old);
    if (old.sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);  // nohup and background jobs of plain shells stay as they are
  }
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigemptyset(&ignore.sa_mask);
  ::sigaction(SIGPIPE, &ignore, nullptr);
}

StopScope::StopScope() {
  stop_requested.store(false);
  stop_scope_open.store(true);
}

StopScope::~StopScope() { stop_scope_open.store(false); }

const std::atomic<bool>& StopScope::flag() const { return stop_requested; }

Exit StopScope::exit_code() const { return stop_signal.load() == SIGTERM ? Exit::Terminated : Exit::Interrupted; }

}  // namespace steptwin
