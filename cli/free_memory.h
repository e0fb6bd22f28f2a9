// Memory of this computer (not of the simulated machine), so that a run that cannot fit is refused before it starts.
#pragma once

#include <optional>

#include "schedule/base/units.h"

namespace steptwin {

// What this process may still take: the least of free memory, the limits of its control group and of the process. Nothing where the
// system does not say.
std::optional<Bytes> available_memory();

// EnvironmentError (Memory) when about `ops` ops of `bytes_per_op` cannot fit.
void require_memory(double ops, double bytes_per_op);

}  // namespace steptwin
