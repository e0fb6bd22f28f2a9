// Exceptions -> one clear message on standard error and an exit code (DESIGN 9).
#pragma once

#include <exception>
#include <string>

#include "cli/exit_code.h"
#include "cli/session.h"
#include "schedule/base/error.h"

namespace steptwin {

// A wrong command line: exit 2.
InputError usage_error(const std::string& text, const std::string& help = {});

// Usage when every problem is one of the command line (codes USAGE, LAUNCH, OVERRIDE, RUN, QUERY, SQL), else BadInput.
Exit exit_code_of(const InputError& error);
Exit exit_code_of(const EnvironmentError& error);

// Prints what `exception` holds and returns the exit code. Anything but the three exception types is a bug: exit 70.
Exit report(const std::exception_ptr& exception, const Messages& messages);

}  // namespace steptwin
