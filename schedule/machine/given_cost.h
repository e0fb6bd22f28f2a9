// Stage times of the user instead of a machine: "cost": {"model": "given", ...}.
#pragma once

#include <vector>

#include "schedule/base/units.h"

namespace steptwin {

// Each time is that of the whole stage for one micro-batch (embedding, head, loss included), shared over the stage's segments
// by flops with the remainder on the last, so that sums are exact. B = input_grad + weight_grad. Every other op, host launch
// and run-ahead limit costs 0; capacity is unlimited. Recompute costs the forward time again.
struct GivenCost {
  std::vector<Duration> forward, input_grad, weight_grad, optimizer;  // [stage]
  Duration p2p{0};  // every message
};

}  // namespace steptwin
