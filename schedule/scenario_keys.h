// The keys of scenario format 1, section by section: what the readers accept, --set may name, and scenarios/schema.json lists.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace steptwin {

struct ScenarioSection {
  const char* name;  // "" = the top level
  std::vector<std::string> keys;
};

const std::vector<ScenarioSection>& scenario_sections();
bool is_scenario_section(std::string_view name);                    // the top level is none
const std::vector<std::string>& keys_of(std::string_view section);  // of a section of the table
std::vector<std::string> scenario_paths();                          // "name", "batch.micro_batches", ...: every key that is no section

}  // namespace steptwin
