// The engine beside the referee (slow_simulate.h), op by op, with the costs that tests use.
#pragma once

#include <cstdint>
#include <string>

#include "sim/cost/cost_model.h"
#include "sim/simulate.h"
#include "tests/support/slow_simulate.h"

namespace steptwin::test {

// Durations that the ops state (Op::given); every launch costs the same, its first kernel all of it.
class PlainCosts : public CostModel {
 public:
  explicit PlainCosts(std::int64_t launch) : launch_(launch) {}
  std::string name() const override { return "plain"; }
  Cost compute(const Schedule&, const Program&, const Op&) const override { return {}; }
  Cost copy(const Schedule&, const Program&, OpId) const override { return {}; }
  Cost communicate(const Schedule&, const Program&, const Op&, const CommShape&) const override { return {}; }
  Launch launch(const Schedule&, const Op&) const override { return {Duration(launch_), Duration(launch_)}; }

 private:
  std::int64_t launch_;
};

struct SharedLimits {
  bool fair_links = false;
  std::uint32_t compute_slots = 0;
  std::int64_t capacity = 0;  // bytes of device memory; 0 = no limit
  bool slots_for_everything = false;
  std::int64_t turnaround = 0;
  double contention = 0;
};

SlowResult referee(const Schedule& schedule, std::int64_t launch, const SharedLimits& limits = {});

// First difference between a trace (all ranks simulated, one step) and the referee; empty when there is none.
std::string difference(const Schedule& schedule, const Trace& trace, const SlowResult& slow);

}  // namespace steptwin::test
