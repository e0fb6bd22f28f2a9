// Places of nodes, JSON pointers and the list of problems.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "schedule/base/error.h"
#include "schedule/json/json_reader.h"

namespace steptwin {
namespace {

int code_points(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

Place place_in_file(const JsonSource& source, JsonSpan span) {
  const std::size_t begin = std::min(span.begin, source.text.size());
  const auto after = std::upper_bound(source.line_starts.begin(), source.line_starts.end(), begin);
  const std::size_t line_start = *(after - 1);
  std::size_t line_end = std::min(source.text.find('\n', line_start), source.text.size());
  if (line_end > line_start && source.text[line_end - 1] == '\r') --line_end;
  const std::string_view line = std::string_view(source.text).substr(line_start, line_end - line_start);
  Place place;
  place.line = static_cast<int>(after - source.line_starts.begin());
  place.column = 1 + code_points(line.substr(0, begin - line_start));
  const std::size_t end = std::clamp(span.end, begin, std::max(line_end, begin));
  place.length = std::max(1, code_points(std::string_view(source.text).substr(begin, end - begin)));
  place.source = std::string(line);
  std::replace(place.source.begin(), place.source.end(), '\t', ' ');  // one column each, so that the caret stands right
  return place;
}

Place make_place(const JsonNode& node, JsonSpan span) {
  if (node.source == nullptr) return {};
  Place place = node.source->kind == JsonSource::Kind::File ? place_in_file(*node.source, span) : Place{};
  place.file = node.source->name;
  place.pointer = node.pointer;
  return place;
}

std::string join_pointer(const std::string& base, std::string_view segment) { return base + "/" + escape_pointer(segment); }

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

[[noreturn]] void throw_unreadable(const std::string& path) {
  const std::string reason = std::strerror(errno);
  throw EnvironmentError(EnvironmentError::Kind::File, fmt::format("cannot read {}: {}", path, reason));
}

}  // namespace

const char* describe(JsonType type) {
  switch (type) {
    case JsonType::Null:
      return "null";
    case JsonType::Boolean:
      return "true or false";
    case JsonType::Integer:
      return "a whole number";
    case JsonType::Real:
      return "a number";
    case JsonType::String:
      return "a string";
    case JsonType::Array:
      return "a list";
    case JsonType::Object:
      return "an object";
  }
  return "";
}

const JsonNode* JsonNode::find(std::string_view name) const {
  if (type != JsonType::Object) return nullptr;
  const auto it = std::find_if(items.begin(), items.end(), [name](const JsonNode& n) { return n.key == name; });
  return it == items.end() ? nullptr : &*it;
}

JsonNode* JsonNode::find(std::string_view name) { return const_cast<JsonNode*>(std::as_const(*this).find(name)); }

Place place_of(const JsonNode& node) { return make_place(node, node.value_span); }

Place key_place_of(const JsonNode& node) {
  return make_place(node, node.key_span.end > node.key_span.begin ? node.key_span : node.value_span);
}

void JsonProblems::add(Diagnostic problem) {
  ++count_;
  if (list_.size() < kMaxProblems) list_.push_back(std::move(problem));
}

// A place is found by walking the text: only for problems that are kept.
void JsonProblems::error(std::string code, const JsonNode& node, std::string text, std::string help) {
  if (list_.size() >= kMaxProblems) return void(++count_);
  if (node.from_override()) code = "OVERRIDE";
  add({Severity::Error, std::move(code), std::move(text), std::move(help), place_of(node), {}});
}

void JsonProblems::error_at_key(std::string code, const JsonNode& node, std::string text, std::string help) {
  if (list_.size() >= kMaxProblems) return void(++count_);
  if (node.from_override()) code = "OVERRIDE";
  add({Severity::Error, std::move(code), std::move(text), std::move(help), key_place_of(node), {}});
}

bool JsonProblems::is_misspelt(const std::string& pointer) const {
  return std::find(misspelt_.begin(), misspelt_.end(), pointer) != misspelt_.end();
}

void JsonProblems::throw_if_errors() const {
  if (list_.empty()) return;
  std::vector<Diagnostic> sorted = list_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Diagnostic& a, const Diagnostic& b) {
    if (a.place.file != b.place.file) return false;  // keeps files in the order in which they were met
    return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
  });
  throw InputError(std::move(sorted));
}

const JsonSource* JsonDocument::add_source(JsonSource source) {
  sources_.push_back(std::make_unique<JsonSource>(std::move(source)));
  return sources_.back().get();
}

std::string escape_pointer(std::string_view segment) {
  std::string out;
  for (const char c : segment) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

void renumber_pointers(JsonNode& node) {
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    JsonNode& item = node.items[i];
    item.pointer = join_pointer(node.pointer, node.type == JsonType::Object ? std::string_view(item.key) : std::to_string(i));
    renumber_pointers(item);
  }
}

std::string read_text_file(const std::string& path) {
  errno = 0;
  const std::unique_ptr<std::FILE, CloseFile> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (!file) throw_unreadable(path);
  std::string text;
  char buffer[1 << 16];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, file.get())) {
    text.append(buffer, n);
    if (text.size() > kMaxJsonFileBytes) {
      Diagnostic problem{Severity::Error,           "SIZE", fmt::format("larger than {} MiB", kMaxJsonFileBytes >> 20),
                         "is this the right file?", {},     {}};
      problem.place.file = path;
      throw InputError(std::move(problem));
    }
  }
  if (std::ferror(file.get()) != 0) throw_unreadable(path);
  return text;
}

std::string in_quotes(std::string_view word) { return fmt::format("\"{}\"", clipped(word)); }

std::string join_names(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

}  // namespace steptwin
