// Text to nodes: one SAX pass of nlohmann-json over an iterator that counts, because the library keeps no positions of valid
// documents (specs/ux.md 7). The start of a token is the end of the token before it, past blanks, separators and comments.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "schedule/base/error.h"
#include "schedule/json/json_reader.h"

namespace steptwin {
namespace {

// Walks the text and publishes how far it came; the library copies iterators, so the counter lives outside.
class CountingIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator() = default;
  CountingIterator(const char* at, std::size_t* consumed) : at_(at), consumed_(consumed) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*consumed_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_ = nullptr;
  std::size_t* consumed_ = nullptr;
};

// Offset of the first character at or after `at` that belongs to a token.
std::size_t skip_to_token(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const char c = text[at];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ',' || c == ':') {
      ++at;
    } else if (text.substr(at, 2) == "//") {
      at = std::min(text.find('\n', at), text.size());
    } else if (text.substr(at, 2) == "/*") {
      const std::size_t end = text.find("*/", at + 2);
      at = end == std::string_view::npos ? text.size() : end + 2;
    } else {
      break;
    }
  }
  return at;
}

constexpr const char* kOpenString = "the string does not end on its line";

struct Failure {
  std::size_t begin = 0, end = 0;
  std::string code, text, help;
};

// Length in the text of the library's "last read" token, in which control characters are written <U+000A>.
std::size_t raw_length(const std::string& token) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < token.size(); ++length) i += token.compare(i, 3, "<U+") == 0 && i + 8 <= token.size() ? 8 : 1;
  return length;
}

bool is_word(char c) {
  return std::string_view("+-.").find(c) != std::string_view::npos || std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Start of the token at which the library gave up after reading `end` bytes. Its own record of the token is reliable for strings only.
std::size_t failed_token_begin(std::string_view text, std::size_t end, const std::string& token, const std::string& reason) {
  if (reason == kOpenString || reason.find("invalid string") != std::string::npos ||
      reason.find("unexpected string literal") != std::string::npos)
    return end - std::min(end, raw_length(token));
  std::size_t begin = end;
  while (begin > 0 && is_word(text[begin - 1])) --begin;
  return begin == end && end > 0 ? end - 1 : begin;
}

// What the library complains about, without its prefix: "[json.exception...] parse error at ...: syntax error while parsing X - REASON;
// last read: ...".
std::string reason_of(const std::string& what) {
  std::size_t from = what.find(" - ");
  from = from == std::string::npos ? 0 : from + 3;
  const std::size_t last_read = what.find("; last read", from);
  std::string reason = what.substr(from, last_read == std::string::npos ? std::string::npos : last_read - from);
  if (const std::size_t expected = what.find("; expected", from); last_read != std::string::npos && expected != std::string::npos)
    reason += what.substr(expected);
  return reason;
}

std::string help_for_syntax(std::string_view text, std::size_t at, const std::string& reason) {
  const std::string_view rest = text.substr(std::min(at, text.size()));
  if (rest.empty()) return "the file ends too early: a closing bracket or quote is missing";
  if (reason == kOpenString) return "close it with a double quote";
  if (rest.starts_with("NaN") || rest.starts_with("Inf") || rest.starts_with("-Inf")) return "JSON has no NaN or Infinity: write a number";
  if (rest.starts_with("'")) return "strings stand in double quotes";
  if (rest.starts_with("#")) return "comments start with //";
  std::size_t before = at;
  while (before > 0 && std::string_view(" \t\r\n").find(text[before - 1]) != std::string_view::npos) --before;
  if ((rest.starts_with("}") || rest.starts_with("]")) && before > 0 && text[before - 1] == ',') return "remove the comma before it";
  if (reason.find("expected end of input") != std::string::npos) return "remove everything after the closing bracket";
  if (reason.find("unexpected string literal") != std::string::npos) return "a comma is missing before it";
  return {};
}

class TreeBuilder {
 public:
  TreeBuilder(std::string_view text, const JsonSource* source, std::string pointer, const std::size_t* consumed, JsonProblems& problems)
      : text_(text), source_(source), root_pointer_(std::move(pointer)), consumed_(consumed), problems_(problems) {}

  bool null() {
    return leaf(JsonType::Null, kWord, [](JsonNode&) {});
  }
  bool boolean(bool value) {
    return leaf(JsonType::Boolean, kWord, [value](JsonNode& n) { n.boolean = value; });
  }
  bool number_integer(std::int64_t value) {
    return leaf(JsonType::Integer, kNumber, [value](JsonNode& n) {
      n.integer = value;
      n.real = static_cast<double>(value);
    });
  }
  bool number_unsigned(std::uint64_t value) {
    if (value <= static_cast<std::uint64_t>(INT64_MAX)) return number_integer(static_cast<std::int64_t>(value));
    return number_float(static_cast<double>(value), {});
  }
  bool number_float(double value, const std::string&) {
    return leaf(JsonType::Real, kNumber, [value](JsonNode& n) { n.real = value; });
  }
  bool string(std::string& value) {
    return leaf(JsonType::String, kWord, [&value](JsonNode& n) { n.text = std::move(value); });
  }
  bool binary(nlohmann::json::binary_t&) { return false; }  // never called for text
  bool start_object(std::size_t) { return open(JsonType::Object); }
  bool start_array(std::size_t) { return open(JsonType::Array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    key_ = std::move(name);
    key_span_ = take_span(kWord);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception& error) {
    std::string reason = error.id == 406 ? "number too large for a double" : reason_of(error.what());
    const bool at_line_end = position > 0 && position <= text_.size() && text_[position - 1] == '\n';
    if (at_line_end && reason.starts_with("invalid string")) reason = kOpenString;
    const bool at_end = reason.find("unexpected end of input") != std::string::npos || position > text_.size();
    const std::size_t end = at_end ? text_.size() : position;
    const std::size_t begin = at_end ? end : failed_token_begin(text_, end, token, reason);
    failure_ = {begin, end, "SYNTAX", "not valid JSON: " + reason, help_for_syntax(text_, begin, reason)};
    return false;
  }

  std::optional<JsonNode> take_root() { return std::move(root_); }
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  enum TokenKind : std::uint8_t { kWord, kNumber };

  // The span of the token just read. The lexer has read one character past a number, unless the text ended.
  JsonSpan take_span(TokenKind kind) {
    const std::size_t begin = skip_to_token(text_, previous_end_);
    std::size_t end = *consumed_;
    if (kind == kNumber) {
      end = begin;
      while (end < text_.size() && std::string_view("+-.0123456789eE").find(text_[end]) != std::string_view::npos) ++end;
    }
    previous_end_ = end;
    return {begin, end};
  }

  template <class Fill>
  bool leaf(JsonType type, TokenKind kind, Fill fill) {
    JsonNode node = make(type, take_span(kind));
    fill(node);
    place(std::move(node));
    return true;
  }

  JsonNode make(JsonType type, JsonSpan span) {
    JsonNode node;
    node.type = type;
    node.source = source_;
    node.value_span = span;
    node.pointer = root_pointer_;
    if (open_.empty()) return node;
    const JsonNode& parent = open_.back();
    if (parent.type == JsonType::Object) {
      node.key = std::exchange(key_, {});
      node.key_span = key_span_;
    }
    node.pointer =
        parent.pointer + "/" + (parent.type == JsonType::Object ? escape_pointer(node.key) : std::to_string(parent.items.size()));
    return node;
  }

  bool open(JsonType type) {
    const JsonSpan span = take_span(kWord);
    if (open_.size() >= kMaxJsonDepth) {
      failure_ = {span.begin, span.end, "DEPTH", fmt::format("nested deeper than {} levels", kMaxJsonDepth),
                  "no known document needs this"};
      return false;
    }
    open_.push_back(make(type, span));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    take_span(kWord);
    JsonNode node = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    place(std::move(node));
    return true;
  }

  void place(JsonNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    JsonNode& parent = open_.back();
    if (parent.type == JsonType::Object) {
      const auto [first, fresh] = keys_.back().try_emplace(node.key, parent.items.size());
      if (!fresh) return report_duplicate(parent.items[first->second], node);
    }
    parent.items.push_back(std::move(node));
  }

  void report_duplicate(const JsonNode& first, const JsonNode& second) {
    const Place at = key_place_of(first);
    const std::string where = at.line > 0 ? fmt::format(" (first at {}:{})", at.line, at.column) : "";
    problems_.error_at_key("DUPLICATE-KEY", second, fmt::format("key {} stands twice in one object{}", in_quotes(second.key), where),
                           "remove one of the two");
  }

  std::string_view text_;
  const JsonSource* source_;
  std::string root_pointer_;
  const std::size_t* consumed_;
  JsonProblems& problems_;
  std::vector<JsonNode> open_;  // containers not closed yet, outermost first
  std::vector<std::unordered_map<std::string, std::size_t>> keys_;  // of each: where among its items
  std::string key_;
  JsonSpan key_span_;
  std::size_t previous_end_ = 0;
  std::optional<JsonNode> root_;
  std::optional<Failure> failure_;
};

struct Parsed {
  std::optional<JsonNode> root;
  std::optional<Failure> failure;
};

Parsed parse_tree(std::string_view text, const JsonSource* source, std::string pointer, JsonProblems& problems) {
  // The library takes a zero byte for the end of the text and would not see what follows it.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    return {{}, Failure{zero, zero + 1, "SYNTAX", "not valid JSON: a zero byte", "save the file as UTF-8 text"}};
  std::size_t consumed = 0;
  TreeBuilder builder(text, source, std::move(pointer), &consumed, problems);
  const CountingIterator first(text.data(), &consumed), last(text.data() + text.size(), &consumed);
  constexpr bool kStrict = true, kIgnoreComments = true;
  const bool ok = nlohmann::json::sax_parse(first, last, &builder, nlohmann::json::input_format_t::json, kStrict, kIgnoreComments);
  if (ok) return {builder.take_root(), {}};
  return {{}, builder.failure().value_or(Failure{0, 0, "SYNTAX", "not valid JSON", {}})};
}

std::vector<std::size_t> find_line_starts(std::string_view text) {
  std::vector<std::size_t> starts{0};
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') starts.push_back(i + 1);
  }
  return starts;
}

[[noreturn]] void throw_failure(const Failure& failure, const JsonSource& source) {
  JsonNode node;
  node.source = &source;
  node.value_span = {failure.begin, failure.end};
  Diagnostic problem{Severity::Error, failure.code, failure.text, failure.help, place_of(node), {}};
  throw InputError(std::move(problem));
}

}  // namespace

JsonDocument JsonDocument::parse(std::string_view text, const std::string& name, JsonProblems& problems) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // byte order mark
  JsonDocument document;
  JsonSource made{name, std::string(text), find_line_starts(text), JsonSource::Kind::File};
  const JsonSource* source = document.add_source(std::move(made));
  Parsed parsed = parse_tree(source->text, source, {}, problems);
  if (!parsed.root) throw_failure(*parsed.failure, *source);
  document.root_ = std::make_unique<JsonNode>(std::move(*parsed.root));
  return document;
}

JsonDocument JsonDocument::read(const std::string& path, JsonProblems& problems) {
  return parse(read_text_file(path), path == "-" ? "<stdin>" : path, problems);
}

std::optional<JsonNode> parse_json_value(std::string_view text, const JsonSource* source, std::string pointer, JsonProblems& problems) {
  return parse_tree(text, source, std::move(pointer), problems).root;
}

}  // namespace steptwin
