// Out of memory as an outcome: the first op whose allocation exceeds the capacity, whatever the timing, and who holds what.
#pragma once

#include <optional>

#include "sim/memory_curves.h"
#include "traces/trace.h"

namespace steptwin {

struct MemoryRequest {
  std::uint32_t op = 0;         // local
  std::int64_t bytes = 0;       // asked for at this op
  std::int64_t in_use = 0;      // before
  std::int64_t capacity = 0;
};

// None when `allocated` never exceeds the capacity (0 = unlimited). Resident bytes alone over capacity: op 0.
std::optional<MemoryRequest> first_over_capacity(const Schedule& schedule, const MemoryPlan& plan, Space space, Bytes capacity);
// The outcome with the holders by category, largest first.
Outcome out_of_memory(const Schedule& schedule, const MemoryPlan& plan, RankId rank, const MemoryRequest& request, SimTime at);

}  // namespace steptwin
