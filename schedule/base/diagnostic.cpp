#include "schedule/base/diagnostic.h"

#include <fmt/format.h>

#include <algorithm>

namespace steptwin {
namespace {

// Damerau-Levenshtein distance (optimal string alignment), three rolling rows.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

const char* severity_word(Severity severity) {
  switch (severity) {
    case Severity::Error: return "error";
    case Severity::Warning: return "warning";
    case Severity::Note: return "note";
  }
  return "error";
}

std::string place_line(const Place& place) {
  std::string where = place.file;
  if (place.line > 0) where += fmt::format(":{}:{}", place.line, place.column);
  if (!place.pointer.empty()) where += fmt::format(" ({})", clipped(place.pointer, 200));
  return where;
}

std::string caret_block(const Place& place) {
  const std::string number = std::to_string(place.line);
  const auto indent = static_cast<std::size_t>(std::max(place.column - 1, 0));
  return fmt::format("\n  {} | {}\n{}  | {}{}", number, place.source, std::string(number.size() + 1, ' '), std::string(indent, ' '),
                     std::string(static_cast<std::size_t>(std::max(place.length, 1)), '^'));
}

}  // namespace

bool has_errors(const std::vector<Diagnostic>& diagnostics) {
  return std::any_of(diagnostics.begin(), diagnostics.end(), [](const Diagnostic& d) { return d.severity == Severity::Error; });
}

std::string clipped(std::string_view word, std::size_t most) {
  if (word.size() <= most) return std::string(word);
  while (most > 0 && (static_cast<unsigned char>(word[most]) & 0xC0) == 0x80) --most;  // inside a character of UTF-8
  return std::string(word.substr(0, most)) + "...";
}

std::string format_diagnostic(const Diagnostic& d) {
  std::string out = fmt::format("{}: {}", severity_word(d.severity), d.text);
  if (!d.code.empty()) out += fmt::format(" [{}]", d.code);
  if (!d.place.file.empty()) out += "\n  --> " + place_line(d.place);
  if (!d.place.source.empty() && d.place.source.size() <= 400) out += caret_block(d.place);
  for (const std::string& line : d.details) out += "\n  " + line;
  if (!d.help.empty()) out += "\n  help: " + d.help;
  return out;
}

std::string nearest_name(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = 3;
  for (const std::string& candidate : known) {
    if (std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size()) >= best_distance) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && distance < std::max<std::size_t>(word.size(), 2)) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty() || word.size() < 2) return best;
  for (const std::string& candidate : known) {
    const bool fits = candidate.starts_with(word) || word.starts_with(candidate);
    if (fits && (best.empty() || candidate.size() < best.size())) best = candidate;
  }
  return best;
}

}  // namespace steptwin
