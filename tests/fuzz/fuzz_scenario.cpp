// libFuzzer entry for the scenario reader: any bytes give a Scenario or an InputError with at least one problem, never anything else.
// Bytes before the first zero byte, when there is one, are an override PATH=VALUE.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "schedule/base/error.h"
#include "schedule/scenario.h"

namespace {

void parse_once(std::string_view text, const std::vector<steptwin::Override>& overrides) {
  try {
    const steptwin::Scenario scenario = steptwin::parse_scenario(text, "fuzz.json", overrides);
    if (steptwin::resolved_listing(scenario).empty() || scenario.sha256.size() != 64) std::abort();
  } catch (const steptwin::InputError& e) {
    if (e.problems().empty() || e.problems().size() > 20) std::abort();
    for (const steptwin::Diagnostic& problem : e.problems()) {
      if (steptwin::format_diagnostic(problem).empty() || problem.place.file.empty()) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<steptwin::Override> overrides;
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    const std::string_view change = text.substr(0, zero);
    const std::size_t equals = change.find('=');
    if (equals != std::string_view::npos)
      overrides.push_back({std::string(change.substr(0, equals)), std::string(change.substr(equals + 1))});
    text.remove_prefix(zero + 1);
  }
  parse_once(text, overrides);
  return 0;
}
