// Refuses a run whose times int64 nanoseconds may not hold, before any time is added up.
#pragma once

#include <cstdint>

#include "schedule/ir/schedule.h"
#include "sim/pricing.h"

namespace steptwin {

// No end can come later than the sum of all durations and launch costs of all simulated ranks and repetitions. InputError (code TIME)
// with the longest op when that sum exceeds 4e18 ns (126 years).
void check_time_range(const Schedule& schedule, const Matching& matching, const Pricing& pricing, std::uint32_t steps);

}  // namespace steptwin
