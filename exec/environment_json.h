// The environment variables that a backend runs under, for the record of a run.
#pragma once

#include <initializer_list>
#include <string>

namespace steptwin {

// {"NAME": "value" or null, ...}; quotes, backslashes and control characters of a value are left out.
std::string environment_variables_json(std::initializer_list<const char*> names);

}  // namespace steptwin
