#include "schedule/model/frozen.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "schedule/base/diagnostic.h"

namespace steptwin {
namespace {

std::vector<std::string> segments_of(std::string_view name) {
  std::vector<std::string> segments;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    segments.emplace_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return segments;
}

std::string joined(const std::vector<std::string>& segments) {
  std::string name;
  for (const std::string& segment : segments) name += (&segment == &segments.front() ? "" : ".") + segment;
  return name;
}

// A whole number that the text begins with and what is behind it; nothing when it begins with none, or with one that is too long.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.front() < '0' || text.front() > '9' || error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool ends_segment(std::string_view rest) { return rest.empty() || rest.front() == '.'; }

struct Range {
  std::int64_t first = 0, last = 0;
  std::string_view rest;  // of the pattern
};
std::optional<Range> range_at(std::string_view pattern) {
  const auto first = take_number(pattern);
  if (!first || pattern.empty() || pattern.front() != '-') return std::nullopt;
  pattern.remove_prefix(1);
  const auto last = take_number(pattern);
  if (!last || !ends_segment(pattern)) return std::nullopt;
  return Range{*first, *last, pattern};
}

// Takes the pattern's next character, or number range at the start of a segment, off both when they agree.
bool take_token(std::string_view& pattern, std::string_view& name, bool& at_start) {
  if (pattern.empty()) return false;
  if (const auto range = at_start ? range_at(pattern) : std::nullopt) {
    std::string_view rest = name;
    const auto number = take_number(rest);
    if (!number || !ends_segment(rest) || *number < range->first || *number > range->last) return false;
    pattern = range->rest, name = rest, at_start = false;
    return true;
  }
  if (name.empty() || name.front() != pattern.front()) return false;
  at_start = pattern.front() == '.';
  pattern.remove_prefix(1), name.remove_prefix(1);
  return true;
}

bool matches_one(const std::string& pattern, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return matches_name(pattern, name); });
}

// Every word of the pattern that is in no name becomes the nearest one that is, and every number beyond the largest one becomes that.
std::string with_known_words(const std::string& pattern, const std::vector<std::string>& names) {
  std::vector<std::string> words;
  std::int64_t largest = 0;
  for (const std::string& name : names)
    for (std::string& word : segments_of(name)) {
      std::string_view rest = word;
      if (const auto number = take_number(rest))
        largest = std::max(largest, *number);
      else if (std::find(words.begin(), words.end(), word) == words.end())
        words.push_back(std::move(word));
    }
  std::vector<std::string> segments = segments_of(pattern);
  for (std::string& segment : segments) {
    std::string_view rest = segment;
    const auto number = take_number(rest);
    if (number && *number > largest) segment = std::to_string(largest);
    if (number || segment.empty() || segment.find('*') != std::string::npos) continue;
    if (const std::string near = nearest_name(segment, words); !near.empty()) segment = near;
  }
  return joined(segments);
}

}  // namespace

// What stands between two stars is taken where it first fits: only the last star is ever tried further on.
bool matches_name(std::string_view pattern, std::string_view name) {
  struct Star {
    std::string_view pattern, name;  // behind it
  };
  std::optional<Star> star;
  bool at_start = true;
  while (!pattern.empty() || !name.empty()) {
    if (pattern.starts_with("*")) {
      pattern.remove_prefix(1);
      star = {pattern, name};
      at_start = false;
    } else if (!take_token(pattern, name, at_start)) {
      if (!star || star->name.empty()) return false;
      star->name.remove_prefix(1);
      pattern = star->pattern, name = star->name, at_start = false;
    }
  }
  return true;
}

std::string nearest_pattern(const std::string& pattern, const std::vector<std::string>& names) {
  for (const std::string& spelt : {pattern, with_known_words(pattern, names)})
    for (const std::string& tried : {spelt, spelt + ".*", "*." + spelt, spelt + "*", "*" + spelt})
      if (matches_one(tried, names)) return tried;
  return nearest_name(pattern, names);
}

bool WantedGradients::of(std::string_view end) const { return std::find(frozen.begin(), frozen.end(), end) == frozen.end(); }

}  // namespace steptwin
