// The machine profile as JSON nodes: read by load_machine and, with a scenario's own figures laid over it, by the scenario.
#pragma once

#include <string>
#include <vector>

#include "schedule/json/json_reader.h"
#include "schedule/machine/machine.h"

namespace steptwin {

// Keys of a profile's top level that a scenario may state beside "preset" or "profile".
const std::vector<std::string>& machine_figure_keys();

// Reads a profile; problems are added, and then the machine is not to be used.
Machine read_machine(const JsonNode& root, JsonProblems& problems);

// A profile of the same format, with keys in a fixed order and without sources: read_machine of it gives the same machine.
std::string machine_to_json(const Machine& machine);
// The same with the source of every figure that has one: what a profile file holds.
std::string machine_profile_json(const Machine& machine);

// Lays the members of `over` into `base`, objects member by member, everything else replacing. Nodes keep their own places.
void overlay(JsonNode& base, const JsonNode& over);

}  // namespace steptwin
