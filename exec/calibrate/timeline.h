// What happened in an executed trace, one item per piece of work: a compute op or copy, a transfer (once, not once per member), or a group
// of transfers of one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/backend.h"
#include "schedule/ir/matching.h"

namespace steptwin {

struct WorkItem {
  std::uint32_t rank = 0;  // index into the matching's ranks
  std::uint32_t step = 0;
  std::uint32_t op = 0, count = 1;  // local; a group: its first op and its size
  bool local = false;
  std::int64_t begin = 0, end = 0;  // ns. Of a transfer or group: from when its last member was ready
  std::int64_t idle = 0;            // Interp: between the end of the item before it, of whatever rank, and begin
};

// Ascending by end. Interp: one thread does one thing at a time, so an item does not begin before the one before it has ended.
// Ops that did no work (guarded off) and host waits are left out. The trace must be of a finished run of all ranks.
std::vector<WorkItem> timeline(const Matching& matching, const Trace& trace, ExecutionMode mode);

}  // namespace steptwin
