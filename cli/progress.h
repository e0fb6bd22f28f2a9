// Progress on standard error. TTY: one line, redrawn at most 10 times a second. Otherwise nothing for 30 s, then a plain line
// every 30 s. finish() clears the TTY line. Never on standard output.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "schedule/base/units.h"

namespace steptwin {

enum class ProgressStyle { None, Redrawn, Plain };

class Progress {
 public:
  using WallClock = std::chrono::steady_clock;
  Progress(ProgressStyle style, std::string activity, std::function<void(const std::string&)> write,
           WallClock::time_point start = WallClock::now());
  void update(std::uint64_t done, std::uint64_t total, SimTime now, WallClock::time_point wall = WallClock::now());
  void finish();

 private:
  ProgressStyle style_;
  std::string activity_;
  std::function<void(const std::string&)> write_;
  WallClock::time_point start_, next_;
  bool drawn_ = false;
};

// "simulating  62 %  412.0 ms simulated  8.100 M ops/s  ETA 2 s"
std::string progress_text(const std::string& activity, std::uint64_t done, std::uint64_t total, SimTime now, double wall_seconds);

}  // namespace steptwin
