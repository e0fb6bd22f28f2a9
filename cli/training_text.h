// The text that executions train on: --data FILE, else the one that ships with steptwin.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/options.h"

namespace steptwin {

std::vector<std::uint8_t> training_text(const Options& options);  // throws EnvironmentError when it cannot be read

}  // namespace steptwin
