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
