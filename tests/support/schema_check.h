// A small JSON Schema draft-07 validator: the words that scenarios/schema.json uses, for tests only. An unknown word is an error, so that
// the schema cannot say something that nobody checks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace steptwin::testing {

// Violations as "POINTER: WORD"; empty = valid. Throws std::runtime_error on a word or reference it does not know.
std::vector<std::string> schema_violations(const nlohmann::json& schema, const nlohmann::json& value);

}  // namespace steptwin::testing
