// Where the shipped data (scenarios/, schema) lies: $STEPTWIN_DATA, else the source tree compiled in, else
// ../share/steptwin beside the executable.
#pragma once

#include <string>

namespace steptwin {
std::string data_dir();
}  // namespace steptwin
