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

// Samples of compute ops of one kind, one list a round: their times, and how many compute ops of other ranks ran meanwhile, on average.
struct CrowdedSample {
  std::int64_t time = 0;
  double others = 0;
};
using CrowdedRounds = std::vector<std::vector<CrowdedSample>>;
// Host::compute_contention c that makes the times alone, time / (1 + c others), agree best: least sum over all kinds of |time alone / its
// median - 1|, weighted by time. 0 where the samples say nothing: `others` hardly varies within a kind.
double contention_of(const std::vector<const CrowdedRounds*>& kinds);
Rounds times_alone(const CrowdedRounds& samples, double contention);

// Rounds without samples are passed over; `time` is the smallest of the rounds' medians.
Timing timing_of(const Rounds& rounds);

}  // namespace steptwin
