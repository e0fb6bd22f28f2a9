#include "exec/calibrate/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace steptwin {

std::int64_t quantile(std::vector<std::int64_t> samples, double part) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const double place = part * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  if (below + 1 >= samples.size()) return samples.back();
  const double rest = place - static_cast<double>(below);
  return samples[below] + std::llround(rest * static_cast<double>(samples[below + 1] - samples[below]));
}

namespace {

// Relative to the median alone, in the time that was measured: a large contention must not win by making every time small.
double deviation_at(const std::vector<const CrowdedRounds*>& kinds, double contention) {
  double sum = 0;
  for (const CrowdedRounds* kind : kinds) {
    std::vector<std::int64_t> alone;
    for (const std::vector<std::int64_t>& round : times_alone(*kind, contention)) alone.insert(alone.end(), round.begin(), round.end());
    const double median = std::max(1.0, static_cast<double>(quantile(std::move(alone), 0.5)));
    for (const std::vector<CrowdedSample>& round : *kind)
      for (const CrowdedSample& sample : round) {
        const double time = static_cast<double>(sample.time), slowed = 1 + contention * sample.others;
        sum += time * std::abs(time / slowed / median - 1);
      }
  }
  return sum;
}

// Variance of `others` within kinds, weighted by time.
double spread_of_others(const std::vector<const CrowdedRounds*>& kinds) {
  double variance = 0, weight = 0;
  for (const CrowdedRounds* kind : kinds) {
    double w = 0, first = 0, second = 0;
    for (const std::vector<CrowdedSample>& round : *kind)
      for (const CrowdedSample& sample : round) {
        const auto time = static_cast<double>(sample.time);
        w += time, first += time * sample.others, second += time * sample.others * sample.others;
      }
    if (w > 0) variance += second - first * first / w;
    weight += w;
  }
  return weight > 0 ? variance / weight : 0;
}

}  // namespace

Rounds times_alone(const CrowdedRounds& samples, double contention) {
  Rounds rounds;
  for (const std::vector<CrowdedSample>& round : samples) {
    rounds.emplace_back();
    for (const CrowdedSample& sample : round)
      rounds.back().push_back(std::llround(static_cast<double>(sample.time) / (1 + contention * sample.others)));
  }
  return rounds;
}

double contention_of(const std::vector<const CrowdedRounds*>& kinds) {
  constexpr double kLeastSpread = 0.05, kMost = 4, kGolden = 0.6180339887498949;
  if (spread_of_others(kinds) < kLeastSpread) return 0;
  double low = 0, high = kMost;  // golden section
  for (int i = 0; i < 24; ++i) {
    const double left = high - kGolden * (high - low), right = low + kGolden * (high - low);
    if (deviation_at(kinds, left) <= deviation_at(kinds, right)) {
      high = right;
    } else {
      low = left;
    }
  }
  return std::round(1000 * (low + high) / 2) / 1000;
}

Timing timing_of(const Rounds& rounds) {
  Timing t;
  std::vector<std::int64_t> all;
  for (const std::vector<std::int64_t>& round : rounds) {
    if (round.empty()) continue;
    t.rounds.emplace_back(quantile(round, 0.5));
    all.insert(all.end(), round.begin(), round.end());
  }
  if (all.empty()) return t;
  t.samples = static_cast<std::int64_t>(all.size());
  t.time = *std::min_element(t.rounds.begin(), t.rounds.end());
  t.least = Duration(*std::min_element(all.begin(), all.end()));
  t.p10 = Duration(quantile(all, 0.1)), t.p90 = Duration(quantile(all, 0.9));
  const std::int64_t median = quantile(all, 0.5);
  t.median = Duration(median);
  for (std::int64_t& sample : all) sample = std::abs(sample - median);
  t.deviation = Duration(quantile(std::move(all), 0.5));
  return t;
}

}  // namespace steptwin
