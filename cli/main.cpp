#include "cli/app.h"
#include "cli/signals.h"
#include "cli/streams.h"

int main(int argc, char** argv) {
  steptwin::guard_standard_descriptors();
  steptwin::install_signal_handlers();
  std::vector<std::string> arguments(argv, argv + argc);
  if (arguments.empty()) arguments.emplace_back("steptwin");
  return static_cast<int>(steptwin::run_app(arguments));
}
