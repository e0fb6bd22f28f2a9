// --expect 'step_ms<200': a check of one number of the summary. NAME is a key of the --json summary (step_time_ns, bubble_fraction, ...)
// or a short form: base + _ns _us _ms _s (times), _b _mib _gib (bytes), _pct (fractions); the bases step and peak_mem stand for
// step_time and peak_allocated. OP is < <= > >= == !=.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace steptwin {

using NamedNumbers = std::vector<std::pair<std::string, double>>;

struct Expectation {
  std::string text;  // as typed
  std::string key;   // key of the summary
  double scale = 1;  // value of the key times this is compared
  std::string comparison;
  double bound = 0;
};

// InputError (USAGE) for a wrong form, or a name that leads to none of `keys`.
Expectation parse_expectation(const std::string& text, const std::vector<std::string>& keys);

struct ExpectationResult {
  bool holds = false;
  double value = 0;  // in the unit of the expectation
};
// A number that is missing (no MFU without a machine) never meets an expectation.
ExpectationResult evaluate(const Expectation& expectation, const NamedNumbers& numbers);

}  // namespace steptwin
