// The "measured" section of a machine profile. Times in microseconds with three decimals (exact nanoseconds).
#pragma once

#include <string>

#include "schedule/json/json_reader.h"
#include "schedule/machine/measured.h"

namespace steptwin {

// Problems are added (a key that stands twice is one), and then the tables are not to be used.
MeasuredTables read_measured(const JsonObject& section);

// JSON with keys in a fixed order: read_measured of it gives equal tables.
std::string measured_to_json(const MeasuredTables& tables);

}  // namespace steptwin
