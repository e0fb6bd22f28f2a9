// Unit-time replay of an order: tF = tI = tW = 1, B = 2, no hop latency (specs/schedules.md 0.3, 2, 8). Messages, UNSHARD, RESHARD
// and REDUCE_GRAD cost nothing and are left out.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/orders/orders.h"

namespace steptwin {

struct UnitReplay {
  std::vector<std::vector<std::int64_t>> start;          // [rank][compute action of the rank]; -1 = never starts (circular wait)
  std::int64_t makespan = 0, span = 0;                   // span = the largest rank span
  std::vector<std::int64_t> work;                        // [rank]
  std::vector<std::int64_t> peak_until_w, peak_until_i;  // [rank], chunk activations in flight
  bool stalled = false;
};

// The grid passes check_actions().
UnitReplay replay_units(const ActionGrid& grid);

}  // namespace steptwin
