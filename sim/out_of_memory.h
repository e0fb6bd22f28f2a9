// Out of memory as an outcome: the first op whose allocation exceeds the capacity, whatever the timing, and who holds what.
#pragma once

#include <array>
#include <optional>
#include <string>

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

// A request that some memory cannot meet, and who holds what of it (the request included).
struct Shortage {
  Space space = Space::Device;
  std::string memory;  // "pinned memory of node 3"; empty: the rank's device
  RankId rank;
  OpId op;
  bool resident = false;  // the resident buffers alone exceed the capacity
  SimTime at;
  std::int64_t bytes = 0, in_use = 0, capacity = 0;
  std::array<std::int64_t, kCategories> held{};
};
Outcome out_of_memory(const Schedule& schedule, const Shortage& shortage);

}  // namespace steptwin
