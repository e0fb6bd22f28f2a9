// The training state of a run in a checkpoint folder (exec/checkpoint.h): parameters, master copies and moments, gathered layer by layer;
// no more than one layer is in memory beside the run. What one mesh and ZeRO level has saved, any other loads: every rank reads the pieces
// it holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/cpu/held_ranges.h"
#include "exec/cpu/rank_memory.h"

namespace steptwin {

void save_state(const Schedule& schedule, const Matching& matching, const std::vector<RankMemory>& memories, const std::string& folder,
                std::int64_t steps);
// Gives the steps that were made. Throws EnvironmentError (File) when a tensor is missing or has another type or shape.
std::int64_t load_state(const Schedule& schedule, const Matching& matching, const std::vector<RankMemory>& memories,
                        const std::string& folder);

}  // namespace steptwin
