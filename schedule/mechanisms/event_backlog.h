// DeepSpeed's bound on how far the host runs ahead of a lane: an event is recorded behind every call, and while more than two of them are
// unfinished the host waits for the oldest before it goes on (specs/schedules.md 5.4). Events of a lane end in order, so that is the third
// last one.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/base/ids.h"

namespace steptwin {

class EventBacklog {
 public:
  // What the host has to wait for before the next call; none = nothing.
  OpId oldest() const { return events_.size() > kUnfinished ? events_[events_.size() - 1 - kUnfinished] : OpId(); }
  void record(OpId last_of_call) { events_.push_back(last_of_call); }

 private:
  static constexpr std::size_t kUnfinished = 2;
  std::vector<OpId> events_;
};

}  // namespace steptwin
