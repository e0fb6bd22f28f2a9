// Times of several processes on one axis: that of process 0. Processes of one host share a clock; others compare theirs over the store at
// the beginning and at the end of a run, keep the reading with the shortest round trip, and interpolate in between.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "exec/kv_store.h"

namespace steptwin {

using ClockNow = std::function<std::int64_t()>;  // ns

struct ClockReading {
  std::int64_t at = 0;           // of the own clock
  std::int64_t offset = 0;       // to add to it
  std::int64_t uncertainty = 0;  // half the round trip
};

struct ClockMap {
  ClockReading begin, end;
  std::int64_t to_lead(std::int64_t own) const;
  std::int64_t uncertainty() const { return begin.uncertainty > end.uncertainty ? begin.uncertainty : end.uncertainty; }
};

// One process asks, process 0 answers, at the same time and with the same key. `check` is called while they wait and may throw.
ClockReading ask_clock(KvStore& store, const std::string& key, const ClockNow& now, const std::function<void()>& check);
void answer_clock(KvStore& store, const std::string& key, const ClockNow& now, const std::function<void()>& check);

}  // namespace steptwin
