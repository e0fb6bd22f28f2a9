// The referee: a slow, obvious simulator for tests only. It knows nothing of matching tables, folding or agendas: it steps
// through time and, at every instant, looks at every op of every rank again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "schedule/ir/schedule.h"

namespace steptwin::test {

struct SlowTimes {
  std::int64_t issue = -1, ready = -1, start = -1, end = -1;  // -1: never
};
struct SlowCosts {
  std::function<std::int64_t(RankId, OpId)> duration;  // ns
  std::function<std::int64_t(RankId, OpId)> launch;    // ns; first launch = whole launch
  bool fair_links = false;                             // transfers share the out and in port of the ranks they touch
  std::uint32_t compute_slots = 0;                     // compute ops of all ranks that run at a time; 0 = no limit
  bool slots_for_everything = false;                   // copies and transfers take them too
  std::int64_t turnaround = 0;                         // ns from taking a slot to the start of a local op
  double contention = 0;                               // k compute ops at once run at 1/(1 + contention (k - 1)) each
  std::int64_t capacity = 0;                           // of the device for `active`, bytes; the host waits for room; 0 = no limit
};
struct SlowResult {
  bool finished = false;
  std::map<std::pair<std::uint32_t, std::uint32_t>, SlowTimes> times;  // (rank, op id)
};

SlowResult slow_simulate(const Schedule& schedule, const SlowCosts& costs);

}  // namespace steptwin::test
