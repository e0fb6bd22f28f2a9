// The part of a run that one of several processes drives: a matching of its ranks alone. Whatever walks the ranks of a matching then walks
// the present ones, and has memory, times and results of these only.
//   ranks, instances   hold present ranks (and, of a collective that can never start, Counterpart::kNobody)
//   counterparts       a message's peer that another process runs is kElsewhere; so is its stand_in
#pragma once

#include <vector>

#include "exec/process_group.h"
#include "schedule/ir/matching.h"

namespace steptwin {

inline constexpr std::uint32_t kElsewhere = Counterpart::kNobody - 1;

Matching present_part(const Matching& whole, const std::vector<RankId>& present);

// What this process drives: all ranks, or, as one of a group, the rank of its own number.
Matching matching_of(const Schedule& schedule, const ProcessGroup* group);

}  // namespace steptwin
