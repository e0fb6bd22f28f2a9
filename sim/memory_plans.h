// The memory plans of all programs of a matching, by repetition: a run's first one begins without its lazy buffers.
#pragma once

#include <algorithm>
#include <vector>

#include "schedule/ir/matching.h"
#include "sim/memory_curves.h"

namespace steptwin {

class MemoryPlans {
 public:
  MemoryPlans(const Schedule& schedule, const Matching& matching) {
    const auto lazy = [&](const ProgramTables& tables) { return has_lazy_buffers(schedule.programs[tables.program.value]); };
    const bool differs = std::any_of(matching.tables.begin(), matching.tables.end(), lazy);
    for (const ProgramTables& tables : matching.tables) {
      later_.emplace_back(schedule, schedule.programs[tables.program.value]);
      if (differs) first_.emplace_back(schedule, schedule.programs[tables.program.value], Repetition::First);
    }
  }

  bool first_differs() const { return !first_.empty(); }
  // step: repetition of the run, from 0
  const MemoryPlan& of(std::uint32_t tables, std::uint32_t step) const { return step == 0 && first_differs() ? first_[tables] : later_[tables]; }
  bool use_space(std::size_t space) const {
    return std::any_of(later_.begin(), later_.end(), [space](const MemoryPlan& plan) { return plan.uses_space(space); });
  }

 private:
  std::vector<MemoryPlan> first_, later_;  // [tables]; first_ empty: as the later ones
};

}  // namespace steptwin
