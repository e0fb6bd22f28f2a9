// When the gradient of every segment has its last local contribution.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/mechanisms/plan.h"
#include "schedule/visits.h"

namespace steptwin {

struct GradientEnd {
  std::int32_t chunk = 0, segment = 0;
  std::size_t visit = 0;  // the last one that adds to the segment's gradient buffer
};

// The segments of a rank that have trained parameters, by that visit: the order of the last micro-batch's backward.
std::vector<GradientEnd> gradient_order(const Plan& plan, std::int32_t rank, const Visits& visits);

}  // namespace steptwin
