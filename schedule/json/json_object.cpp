// Typed reading of nodes: every complaint names the value, what is allowed, and what to write instead.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "schedule/json/json_reader.h"

namespace steptwin {
namespace {

constexpr double kExactIntegers = 9007199254740992.0;  // 2^53: every whole number up to here is exact in a double

std::string name_of_value(const JsonNode& node) { return node.key.empty() ? std::string("this value") : in_quotes(node.key); }

void report_type(const JsonNode& node, const char* wanted, JsonProblems& problems) {
  std::string help;
  if (node.type == JsonType::String && !node.text.empty() && std::string_view("0123456789-").find(node.text[0]) != std::string_view::npos)
    help = "write the number without quotes; its unit is fixed by the key";
  if (node.from_override() && std::string_view(wanted) == "a string") help = "quote it for JSON: '\"text\"'";
  problems.error("TYPE", node, fmt::format("{} must be {}, not {}", name_of_value(node), wanted, describe(node.type)), help);
}

std::string bound_text(double value) {
  return std::abs(value) < kExactIntegers && value == std::floor(value) ? fmt::format("{}", static_cast<std::int64_t>(value))
                                                                        : fmt::format("{}", value);
}

constexpr double kUnbounded = 1e300;  // a bound beyond this is not worth telling

std::string range_text(bool has_min, bool has_max, const std::string& min, const std::string& max, const char* min_word) {
  if (has_min && has_max && min == max) return min;
  if (has_min && has_max) return fmt::format("{} {} and at most {}", min_word, min, max);
  if (has_min) return fmt::format("{} {}", min_word, min);
  return fmt::format("at most {}", max);
}

void report_integer_range(const JsonNode& node, std::int64_t value, IntegerRange range, JsonProblems& problems) {
  const std::string allowed =
      range_text(range.min != INT64_MIN, range.max != INT64_MAX, std::to_string(range.min), std::to_string(range.max), "at least");
  const std::int64_t nearest = std::clamp(value, range.min, range.max);
  problems.error("RANGE", node, fmt::format("{} is {}, but must be {}", name_of_value(node), value, allowed),
                 fmt::format("the nearest allowed value is {}", nearest));
}

// Names in keys that state a unit; "bandwidth" or "bandwidth_mbps" for "bandwidth_gb_per_s" differ in these only.
constexpr const char* kUnits[] = {"_us", "_gib", "_mib",   "_gb",   "_mb",   "_gb_per_s", "_tflops", "_gflop", "_ns",
                                  "_ms", "_s",   "_bytes", "_gbps", "_mbps", "_kib",      "_kb",     "_gbs",   "_b"};

// The part before a unit suffix, the longest that matches; the whole key when none does.
std::string without_unit(const std::string& key) {
  std::size_t cut = key.size();
  for (const std::string unit : kUnits) {
    if (key.size() > unit.size() && key.ends_with(unit)) cut = std::min(cut, key.size() - unit.size());
  }
  return key.substr(0, cut);
}

std::string unit_key_for(const std::string& word, const std::vector<std::string>& known) {
  const std::string stem = without_unit(word);
  for (const std::string& key : known) {
    const std::string key_stem = without_unit(key);
    if (key_stem != key && key_stem == stem) return key;
  }
  return {};
}

void report_unknown_key(const JsonNode& object, const JsonNode& member, const std::vector<std::string>& known, JsonProblems& problems) {
  if (const std::string key = unit_key_for(member.key, known); !key.empty()) {
    problems.error_at_key("UNIT", member, fmt::format("unknown key {}: the unit belongs to the key", in_quotes(member.key)),
                          fmt::format("write {}", in_quotes(key)));
    problems.note_misspelt(object.pointer + "/" + key);
    return;
  }
  const std::string near = nearest_name(member.key, known);
  if (!near.empty()) problems.note_misspelt(object.pointer + "/" + near);
  std::string help = near.empty() ? "" : fmt::format("did you mean {}? ", in_quotes(near));
  help += "known here: " + join_names(known);
  const char* what = member.from_override() ? "no such key" : "unknown key";
  problems.error_at_key("UNKNOWN-KEY", member, fmt::format("{} {}", what, in_quotes(member.key)), help);
}

}  // namespace

std::optional<std::int64_t> read_integer(const JsonNode& node, IntegerRange range, JsonProblems& problems) {
  std::int64_t value = node.integer;
  if (node.type == JsonType::Real) {
    if (std::abs(node.real) > kExactIntegers) {
      problems.error("RANGE", node, fmt::format("{} is too large for an exact whole number", name_of_value(node)), "stay below 2^53");
      return std::nullopt;
    }
    if (node.real != std::floor(node.real)) {
      problems.error("TYPE", node, fmt::format("{} must be a whole number, not {}", name_of_value(node), node.real),
                     fmt::format("the nearest is {}", static_cast<std::int64_t>(std::round(node.real))));
      return std::nullopt;
    }
    value = static_cast<std::int64_t>(node.real);
  } else if (node.type != JsonType::Integer) {
    report_type(node, "a whole number", problems);
    return std::nullopt;
  }
  if (value < range.min || value > range.max) {
    report_integer_range(node, value, range, problems);
    return std::nullopt;
  }
  return value;
}

std::optional<double> read_number(const JsonNode& node, NumberRange range, JsonProblems& problems) {
  if (node.type != JsonType::Integer && node.type != JsonType::Real) {
    report_type(node, "a number", problems);
    return std::nullopt;
  }
  const double value = node.real;
  const bool below = range.above_min ? value <= range.min : value < range.min;
  if (!below && value <= range.max) return value;
  const std::string allowed = range_text(range.min > -kUnbounded, range.max < kUnbounded, bound_text(range.min), bound_text(range.max),
                                         range.above_min ? "above" : "at least");
  problems.error("RANGE", node, fmt::format("{} is {}, but must be {}", name_of_value(node), bound_text(value), allowed));
  return std::nullopt;
}

std::optional<std::string> read_string(const JsonNode& node, JsonProblems& problems) {
  if (node.type == JsonType::String) return node.text;
  report_type(node, "a string", problems);
  return std::nullopt;
}

JsonObject::JsonObject(const JsonNode* node, JsonProblems& problems) : problems_(&problems) {
  if (node == nullptr) return;
  if (node->type == JsonType::Object)
    node_ = node;
  else
    report_type(*node, "an object", problems);
}

const JsonNode* JsonObject::find(std::string_view key) const { return node_ == nullptr ? nullptr : node_->find(key); }

bool JsonObject::is_null(std::string_view key) const {
  const JsonNode* node = find(key);
  return node != nullptr && node->type == JsonType::Null;
}

void JsonObject::only(const std::vector<std::string>& known) const {
  if (node_ == nullptr) return;
  for (const JsonNode& member : node_->items) {
    if (std::find(known.begin(), known.end(), member.key) == known.end()) report_unknown_key(*node_, member, known, *problems_);
  }
}

bool JsonObject::require(std::string_view key, const std::string& help) const {
  if (node_ == nullptr) return false;
  if (has(key)) return true;
  if (problems_->is_misspelt(node_->pointer + "/" + std::string(key))) return false;
  const std::string where = node_->key.empty() ? "" : " in " + in_quotes(node_->key);
  problems_->error_at_key("MISSING", *node_, fmt::format("missing key {}{}", in_quotes(key), where), help);
  return false;
}

std::optional<std::int64_t> JsonObject::integer(std::string_view key, IntegerRange range) const {
  const JsonNode* node = find(key);
  return node == nullptr ? std::nullopt : read_integer(*node, range, *problems_);
}

std::optional<double> JsonObject::number(std::string_view key, NumberRange range) const {
  const JsonNode* node = find(key);
  return node == nullptr ? std::nullopt : read_number(*node, range, *problems_);
}

std::optional<bool> JsonObject::boolean(std::string_view key) const {
  const JsonNode* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (node->type == JsonType::Boolean) return node->boolean;
  report_type(*node, "true or false", *problems_);
  return std::nullopt;
}

std::optional<std::string> JsonObject::string(std::string_view key) const {
  const JsonNode* node = find(key);
  return node == nullptr ? std::nullopt : read_string(*node, *problems_);
}

std::optional<std::size_t> JsonObject::choice(std::string_view key, const std::vector<std::string>& names) const {
  const JsonNode* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (node->type != JsonType::String) {
    report_type(*node, "a string", *problems_);
    return std::nullopt;
  }
  const auto it = std::find(names.begin(), names.end(), node->text);
  if (it != names.end()) return static_cast<std::size_t>(it - names.begin());
  const std::string near = nearest_name(node->text, names);
  const std::string help = (near.empty() ? "" : fmt::format("did you mean {}? ", in_quotes(near))) + "known: " + join_names(names);
  problems_->error("UNKNOWN-VALUE", *node, fmt::format("unknown {} {}", node->key, in_quotes(node->text)), help);
  return std::nullopt;
}

namespace {

// Reads every item; nothing unless all are good.
template <class T, class Read>
std::optional<std::vector<T>> read_items(const JsonNode& list, Read read) {
  std::vector<T> out;
  for (const JsonNode& item : list.items) {
    if (auto value = read(item)) out.push_back(std::move(*value));
  }
  if (out.size() != list.items.size()) return std::nullopt;
  return out;
}

}  // namespace

std::optional<std::vector<std::int64_t>> JsonObject::integers(std::string_view key, IntegerRange range) const {
  const JsonNode* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (node->type != JsonType::Array) {
    report_type(*node, "a list of whole numbers", *problems_);
    return std::nullopt;
  }
  return read_items<std::int64_t>(*node, [&](const JsonNode& item) { return read_integer(item, range, *problems_); });
}

std::optional<std::vector<double>> JsonObject::numbers(std::string_view key, NumberRange range) const {
  const JsonNode* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (node->type == JsonType::Array)
    return read_items<double>(*node, [&](const JsonNode& item) { return read_number(item, range, *problems_); });
  if (node->type != JsonType::Integer && node->type != JsonType::Real) {
    report_type(*node, "a number or a list of numbers", *problems_);
    return std::nullopt;
  }
  const std::optional<double> one = read_number(*node, range, *problems_);
  if (!one) return std::nullopt;
  return std::vector<double>{*one};
}

std::optional<std::vector<std::string>> JsonObject::strings(std::string_view key) const {
  const JsonNode* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (node->type != JsonType::Array) {
    report_type(*node, "a list of strings", *problems_);
    return std::nullopt;
  }
  return read_items<std::string>(*node, [&](const JsonNode& item) { return read_string(item, *problems_); });
}

JsonObject JsonObject::object(std::string_view key) const { return JsonObject(find(key), *problems_); }

}  // namespace steptwin
