#include "tests/support/schema_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>

namespace steptwin::testing {
namespace {

using Json = nlohmann::json;

class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  bool valid(const Json& schema, const Json& value) { return violations(schema, value, "").empty(); }

  std::vector<std::string> violations(const Json& schema, const Json& value, const std::string& at) {
    std::vector<std::string> out;
    for (const auto& [word, rule] : schema.items()) check(schema, word, rule, value, at, out);
    return out;
  }

 private:
  using Out = std::vector<std::string>;

  void check(const Json& schema, const std::string& word, const Json& rule, const Json& value, const std::string& at, Out& out) {
    static const std::set<std::string> kSilent = {"$schema", "title", "description", "definitions", "then", "else"};
    if (kSilent.contains(word)) return;
    if (word == "properties" || word == "additionalProperties" || word == "required")
      return object_word(schema, word, rule, value, at, out);
    if (word == "items" || word == "uniqueItems") return array_word(word, rule, value, at, out);
    if (word == "allOf" || word == "$ref" || word == "if") return nested_word(schema, word, rule, value, at, out);
    if (!scalar_word(word, rule, value)) out.push_back(at + ": " + word);
  }

  void object_word(const Json& schema, const std::string& word, const Json& rule, const Json& value, const std::string& at, Out& out) {
    if (!value.is_object()) return;
    if (word == "required") {
      for (const Json& key : rule) {
        if (!value.contains(key.get<std::string>())) out.push_back(at + ": required " + key.get<std::string>());
      }
      return;
    }
    static const Json kNone = Json::object();
    const auto found = schema.find("properties");
    const Json& properties = found == schema.end() ? kNone : *found;
    for (const auto& [key, member] : value.items()) {
      const bool named = properties.contains(key);
      if (word == "properties" && named) append(out, violations(properties[key], member, at + "/" + key));
      if (word == "additionalProperties" && !named) {
        if (rule.is_object())
          append(out, violations(rule, member, at + "/" + key));
        else if (!rule.get<bool>())
          out.push_back(at + ": additionalProperties " + key);
      }
    }
  }

  void array_word(const std::string& word, const Json& rule, const Json& value, const std::string& at, Out& out) {
    if (!value.is_array()) return;
    if (word == "uniqueItems") {
      if (std::set<Json>(value.begin(), value.end()).size() != value.size()) out.push_back(at + ": uniqueItems");
      return;
    }
    for (std::size_t i = 0; i < value.size(); ++i) append(out, violations(rule, value[i], at + "/" + std::to_string(i)));
  }

  void nested_word(const Json& schema, const std::string& word, const Json& rule, const Json& value, const std::string& at, Out& out) {
    if (word == "$ref") return append(out, violations(root_.at(Json::json_pointer(rule.get<std::string>().substr(1))), value, at));
    if (word == "allOf") {
      for (const Json& part : rule) append(out, violations(part, value, at));
      return;
    }
    const char* branch = valid(rule, value) ? "then" : "else";
    if (schema.contains(branch)) append(out, violations(schema[branch], value, at));
  }

  bool scalar_word(const std::string& word, const Json& rule, const Json& value) {
    if (word == "type") return has_type(rule.get<std::string>(), value);
    if (word == "enum") return std::find(rule.begin(), rule.end(), value) != rule.end();
    if (word == "const") return rule == value;
    if (word == "minimum") return !value.is_number() || value.get<double>() >= rule.get<double>();
    if (word == "exclusiveMinimum") return !value.is_number() || value.get<double>() > rule.get<double>();
    if (word == "maximum") return !value.is_number() || value.get<double>() <= rule.get<double>();
    if (word == "minLength") return !value.is_string() || value.get<std::string>().size() >= rule.get<std::size_t>();
    if (word == "not") return !valid(rule, value);
    const auto holds = [&](const Json& part) { return valid(part, value); };
    if (word == "anyOf") return std::any_of(rule.begin(), rule.end(), holds);
    if (word == "oneOf") return std::count_if(rule.begin(), rule.end(), holds) == 1;
    throw std::runtime_error("schema word not known here: " + word);
  }

  static bool has_type(const std::string& type, const Json& value) {
    if (type == "integer") return value.is_number() && value.get<double>() == std::floor(value.get<double>());
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    throw std::runtime_error("schema type not known here: " + type);
  }

  static void append(Out& out, Out more) { out.insert(out.end(), more.begin(), more.end()); }

  const Json& root_;
};

}  // namespace

std::vector<std::string> schema_violations(const Json& schema, const Json& value) { return Checker(schema).violations(schema, value, ""); }

}  // namespace steptwin::testing
