// `--set path=value` on the parsed scenario, before it is read and checked.
#pragma once

#include <vector>

#include "schedule/json/json_reader.h"
#include "schedule/scenario.h"

namespace steptwin {

// Sets each value in turn (the later wins), creating sections on the way. A value is JSON, else a string; null takes the key out.
// A path that names no key, leads through a plain value, or leaves a list is a problem with code OVERRIDE.
void apply_overrides(JsonDocument& document, const std::vector<Override>& overrides, JsonProblems& problems);

}  // namespace steptwin
