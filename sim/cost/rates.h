// Rates that a division needs: a profile that leaves one out is a bad input, said once and clearly (private to sim/cost).
#pragma once

#include <string>

#include "schedule/base/units.h"

namespace steptwin {

// The value when > 0; else InputError naming the machine's figure, what needed it, and the remedy.
double needed_rate(double value, const char* figure, const std::string& needed_by);

constexpr double seconds(Duration d) { return static_cast<double>(d.count()) / 1e9; }
constexpr double real(Bytes b) { return static_cast<double>(b.value); }
constexpr double real(Flops f) { return static_cast<double>(f.value); }

}  // namespace steptwin
