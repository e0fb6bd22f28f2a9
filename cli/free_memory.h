// Memory of this computer (not of the simulated machine), so that a run that cannot fit is refused before it starts.
#pragma once

#include <optional>

#include "schedule/base/units.h"
#include "schedule/ir/schedule.h"

namespace steptwin {

// What this process may still take: the least of free memory, the limits of its control group and of the process. Nothing where the
// system does not say.
std::optional<Bytes> available_memory();

// EnvironmentError (Memory) when about `ops` ops of `bytes_per_op` cannot fit.
void require_memory(double ops, double bytes_per_op);

// EnvironmentError (Memory) when an execution in this computer's memory cannot fit: the `allocated` peaks of all ranks, in all spaces, and
// the spans of the measured steps. A lower bound: temporaries, and what lanes do not lend to each other, come on top. only: of one rank.
void require_execution_memory(const Schedule& schedule, std::uint32_t steps, std::optional<RankId> only);

}  // namespace steptwin
