#include "schedule/overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "schedule/base/diagnostic.h"
#include "schedule/scenario_keys.h"

namespace steptwin {
namespace {

using Path = std::vector<std::string>;

std::string unescape(std::string segment) {
  for (const auto& [code, c] : {std::pair{"~1", '/'}, std::pair{"~0", '~'}}) {
    for (std::size_t at = segment.find(code); at != std::string::npos; at = segment.find(code, at + 1)) segment.replace(at, 2, 1, c);
  }
  return segment;
}

Path split_path(const std::string& text) {
  const bool pointer = text.starts_with("/");
  const char separator = pointer ? '/' : '.';
  Path path;
  std::size_t from = pointer ? 1 : 0;
  while (from <= text.size()) {
    const std::size_t to = std::min(text.find(separator, from), text.size());
    path.push_back(pointer ? unescape(text.substr(from, to - from)) : text.substr(from, to - from));
    from = to + 1;
  }
  return path;
}

std::string plain(const std::string& word) {  // "microBatches" and "microbatches" look like "micro_batches"
  std::string out;
  for (const char c : word) {
    if (c != '_' && c != '-') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string last_segment(const std::string& dotted) { return dotted.substr(dotted.rfind('.') + 1); }

// The known path nearest to a wrong one: as a whole, else by its last segment.
std::string nearest_path(const Path& path) {
  const std::vector<std::string> known = scenario_paths();
  const std::string whole = fmt::format("{}", fmt::join(path, "."));
  if (std::string near = nearest_name(whole, known); !near.empty() && near.find('.') != std::string::npos) return near;
  std::vector<std::string> last;
  for (const std::string& k : known) last.push_back(plain(last_segment(k)));
  const std::string near = nearest_name(plain(path.back()), last);
  const auto it = std::find(last.begin(), last.end(), near);
  return near.empty() ? "" : known[static_cast<std::size_t>(it - last.begin())];
}

bool has_key(std::string_view section, const std::string& key) {
  const auto& keys = keys_of(section);
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Deeper levels (lists, the machine's figures) are checked where they are read.
bool is_known(const Path& path) {
  if (path.empty() || !has_key("", path[0])) return false;
  return path.size() == 1 || (is_scenario_section(path[0]) && has_key(path[0], path[1]));
}

class Setter {
 public:
  Setter(JsonDocument& document, const Override& change, JsonProblems& problems) : problems_(problems), path_(split_path(change.path)) {
    const std::string name = fmt::format("--set {}={}", change.path, change.value);
    source_ = document.add_source({name, change.value, {}, JsonSource::Kind::Override});
  }

  void apply(JsonNode& root) {
    if (root.type != JsonType::Object) return;  // reported when the document is read
    if (path_.size() > kMaxJsonDepth || !is_known(path_)) return report_unknown();
    JsonNode* node = &root;
    for (std::size_t i = 0; i + 1 < path_.size(); ++i) {
      node = child(*node, path_[i], JsonType::Object);
      if (node == nullptr) return;
    }
    put(*node);
  }

 private:
  void report_unknown() {
    const std::string near = nearest_path(path_);
    std::string help = near.empty() ? "see scenarios/README.md for the keys" : fmt::format("did you mean {}?", near);
    if (near.empty() && path_.size() > 1 && is_scenario_section(path_[0])) help = "known here: " + join_names(keys_of(path_[0]));
    JsonNode at = blank(path_pointer());
    problems_.error("OVERRIDE", at, fmt::format("no such key {}", in_quotes(fmt::format("{}", fmt::join(path_, ".")))), help);
  }

  std::string path_pointer() const {
    std::string pointer;
    for (const std::string& segment : path_) pointer += "/" + escape_pointer(segment);
    return pointer;
  }

  JsonNode blank(std::string pointer) const {
    JsonNode node;
    node.source = source_;
    node.pointer = std::move(pointer);
    return node;
  }

  // The member or item `name` of `parent`, made when an object lacks it; nullptr after a report.
  JsonNode* child(JsonNode& parent, const std::string& name, JsonType type) {
    if (parent.type == JsonType::Object) {
      if (JsonNode* found = parent.find(name)) return found;
      JsonNode made = blank(parent.pointer + "/" + escape_pointer(name));
      made.type = type;
      made.key = name;
      parent.items.push_back(std::move(made));
      return &parent.items.back();
    }
    if (parent.type == JsonType::Array) return item(parent, name);
    problems_.error("OVERRIDE", blank(parent.pointer),
                    fmt::format("{} is {}: it has no member {}", in_quotes(parent.key), describe(parent.type), in_quotes(name)),
                    "set the value itself");
    return nullptr;
  }

  JsonNode* item(JsonNode& list, const std::string& name) {
    std::size_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    if (error == std::errc() && end == name.data() + name.size() && index < list.items.size()) return &list.items[index];
    problems_.error("OVERRIDE", blank(list.pointer), fmt::format("no item {} in {}", in_quotes(name), in_quotes(list.key)),
                    fmt::format("items are numbered from 0; there are {}", list.items.size()));
    return nullptr;
  }

  void put(JsonNode& parent) {
    const std::string& text = source_->text;
    std::optional<JsonNode> value = parse_json_value(text, source_, parent.pointer + "/" + escape_pointer(path_.back()), problems_);
    if (value && value->type == JsonType::Null && parent.type == JsonType::Object) {
      std::erase_if(parent.items, [&](const JsonNode& n) { return n.key == path_.back(); });
      return;
    }
    JsonNode* target = child(parent, path_.back(), JsonType::Null);
    if (target == nullptr) return;
    JsonNode made = value ? std::move(*value) : blank(target->pointer);
    if (!value) {
      made.type = JsonType::String;
      made.text = text;
    }
    made.key = target->key;
    made.pointer = target->pointer;
    *target = std::move(made);
  }

  JsonProblems& problems_;
  Path path_;
  const JsonSource* source_ = nullptr;
};

}  // namespace

void apply_overrides(JsonDocument& document, const std::vector<Override>& overrides, JsonProblems& problems) {
  for (const Override& change : overrides) Setter(document, change, problems).apply(document.root());
}

}  // namespace steptwin
