#include "exec/environment_json.h"

#include <fmt/format.h>

#include <cstdlib>

namespace steptwin {

std::string environment_variables_json(std::initializer_list<const char*> names) {
  std::string json = "{";
  for (const char* name : names) {
    const char* const value = std::getenv(name);
    std::string text;
    for (const char* c = value == nullptr ? "" : value; *c != '\0'; ++c)
      if (*c != '"' && *c != '\\' && static_cast<unsigned char>(*c) >= 0x20) text += *c;
    json += fmt::format("{}\"{}\": {}", json.size() == 1 ? "" : ", ", name, value == nullptr ? "null" : "\"" + text + "\"");
  }
  return json + "}";
}

}  // namespace steptwin
