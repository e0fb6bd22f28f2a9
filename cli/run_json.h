// The JSON of a run's summary; for cli/ only.
#pragma once

#include <nlohmann/json.hpp>

#include "analysis/summary.h"

namespace steptwin {

// Every key always, in this order; null where undefined.
nlohmann::ordered_json summary_json(const RunSummary& summary);

}  // namespace steptwin
