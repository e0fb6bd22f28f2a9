#include "cli/expect.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>

#include "cli/errors.h"

namespace steptwin {

namespace {

struct UnitSuffix {
  const char* written;  // "_ms"
  const char* stored;   // "_ns"
  double scale;         // stored * scale = written
};
constexpr std::array<UnitSuffix, 9> kSuffixes{{{"_ns", "_ns", 1},
                                               {"_us", "_ns", 1e-3},
                                               {"_ms", "_ns", 1e-6},
                                               {"_s", "_ns", 1e-9},
                                               {"_b", "_bytes", 1},
                                               {"_mib", "_bytes", 1.0 / (1 << 20)},
                                               {"_gib", "_bytes", 1.0 / (1 << 30)},
                                               {"_pct", "_fraction", 100},
                                               {"_pct", "", 100}}};
constexpr std::array<std::pair<const char*, const char*>, 2> kAliases{{{"step", "step_time"}, {"peak_mem", "peak_allocated"}}};

std::string without_blanks(const std::string& text) {
  std::string result;
  std::copy_if(text.begin(), text.end(), std::back_inserter(result), [](char c) { return c != ' ' && c != '\t'; });
  return result;
}

bool known(const std::string& key, const std::vector<std::string>& keys) { return std::find(keys.begin(), keys.end(), key) != keys.end(); }

// "step_ms" -> ("step_time_ns", 1e-6); an empty key when the name leads nowhere.
std::pair<std::string, double> resolve_name(const std::string& name, const std::vector<std::string>& keys) {
  if (known(name, keys)) return {name, 1};
  for (const UnitSuffix& suffix : kSuffixes) {
    const std::string ending = suffix.written;
    if (name.size() <= ending.size() || !name.ends_with(ending)) continue;
    std::string base = name.substr(0, name.size() - ending.size());
    for (const auto& [alias, full] : kAliases) base = base == alias ? full : base;
    if (known(base + suffix.stored, keys)) return {base + suffix.stored, suffix.scale};
  }
  return {};
}

[[noreturn]] void wrong_form(const std::string& text) {
  throw usage_error("--expect '" + text + "': expected NAME OP NUMBER", "for example --expect 'step_ms<200'; OP is < <= > >= == or !=");
}

double parse_number(const std::string& text, const std::string& digits) {
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value)) wrong_form(text);
  return value;
}

bool compare(double value, const std::string& comparison, double bound) {
  if (comparison == "<") return value < bound;
  if (comparison == "<=") return value <= bound;
  if (comparison == ">") return value > bound;
  if (comparison == ">=") return value >= bound;
  return (comparison == "==") == (value == bound);
}

}  // namespace

Expectation parse_expectation(const std::string& text, const std::vector<std::string>& keys) {
  const std::string compact = without_blanks(text);
  const std::size_t at = compact.find_first_of("<>=!");
  if (at == std::string::npos || at == 0) wrong_form(text);
  const bool two = at + 1 < compact.size() && compact[at + 1] == '=';
  Expectation expectation;
  expectation.text = text;
  expectation.comparison = compact.substr(at, two ? 2 : 1);
  if (expectation.comparison == "=" || expectation.comparison == "!") wrong_form(text);
  expectation.bound = parse_number(text, compact.substr(at + expectation.comparison.size()));
  const std::string name = compact.substr(0, at);
  std::tie(expectation.key, expectation.scale) = resolve_name(name, keys);
  if (expectation.key.empty()) {
    const std::string near = nearest_name(name, keys);
    throw usage_error("--expect '" + text + "': no number is called " + name,
                      near.empty() ? "simulate --json shows the names" : "did you mean " + near + "?");
  }
  return expectation;
}

ExpectationResult evaluate(const Expectation& expectation, const NamedNumbers& numbers) {
  for (const auto& [key, number] : numbers) {
    if (key != expectation.key) continue;
    const double value = number * expectation.scale;
    return {compare(value, expectation.comparison, expectation.bound), value};
  }
  return {false, std::numeric_limits<double>::quiet_NaN()};
}

}  // namespace steptwin
