// Schedules that measure what a scenario may not hold: messages, collectives and copies of many sizes. Every op has resident buffers, so
// that nothing is allocated and everything is touched before it is timed.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "schedule/ir/schedule.h"

namespace steptwin {

struct SweepSchedule {
  std::string name;  // "sweep of collectives, 4 ranks"
  Schedule schedule;
  bool together = false;  // copies of all ways at once: what they slow each other, beside the rows of each alone
};

// Sizes x4 from 1 KiB to 16 MiB; messages between two ranks, every kind of collective for each member count (of at least 2), fp32 and,
// where the op calculates, bf16; copies between device, pinned and pageable memory, and both casts between fp32 and bf16: each alone, then all ways at once;
// and memory-bound compute ops (zero fills) up to 256 MiB.
std::vector<SweepSchedule> sweep_schedules(const std::set<std::uint32_t>& member_counts);

}  // namespace steptwin
