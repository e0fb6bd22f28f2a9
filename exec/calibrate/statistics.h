// From samples to the figures of a row (specs/execution.md 13.2: median, spread, never the mean).
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/machine/measured.h"

namespace steptwin {

// Samples in ns, one list a round.
using Rounds = std::vector<std::vector<std::int64_t>>;

// The value below which `part` (0 to 1) of the samples lie, between neighbours on a straight line. 0 without samples.
std::int64_t quantile(std::vector<std::int64_t> samples, double part);

// Rounds without samples are passed over; `time` is the smallest of the rounds' medians.
Timing timing_of(const Rounds& rounds);

}  // namespace steptwin
