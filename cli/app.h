// The program after its surroundings are set up: command line -> verb -> exit code. Never throws.
#pragma once

#include <string>
#include <vector>

#include "cli/exit_code.h"

namespace steptwin {

// arguments[0] is the program name.
Exit run_app(const std::vector<std::string>& arguments);

}  // namespace steptwin
