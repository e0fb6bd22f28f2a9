// Strict JSON input that knows where every value stands.
//
// Promise: a parsed document is a tree of plain nodes, each with the place of its token and of its key. Typed getters never throw on
// bad input: they add a Diagnostic (place, JSON pointer, remedy) to a JsonProblems and return nothing, so that one run reports all
// problems of a file. Only JsonProblems::throw_if_errors and the parse of unreadable text end the reading, with InputError.
//
// Strictness: duplicate keys, trailing text, NaN/Infinity, numbers that overflow a double, nesting deeper than kMaxJsonDepth and invalid
// UTF-8 are errors.
// `//` and `/* */` comments and a UTF-8 byte order mark are accepted. Lines and columns start at 1; columns count code points.
// Codes used: SYNTAX, DUPLICATE-KEY, DEPTH, TYPE, RANGE, UNKNOWN-KEY, UNKNOWN-VALUE, MISSING, UNIT; OVERRIDE in place of the
// last six when the value came from `--set`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/base/diagnostic.h"

namespace steptwin {

inline constexpr std::size_t kMaxJsonDepth = 100;                        // far above any real document; keeps recursion over nodes safe
inline constexpr std::size_t kMaxJsonFileBytes = std::size_t{64} << 20;  // a larger file is no configuration
inline constexpr std::size_t kMaxProblems = 20;

// A text that nodes come from: a file, or one `--set path=value`.
struct JsonSource {
  enum class Kind : std::uint8_t { File, Override };
  std::string name;  // as the user wrote it: "scenarios/a.json", "<stdin>", "--set mesh.pp=4"
  std::string text;
  std::vector<std::size_t> line_starts;  // byte offsets; empty for overrides, which have no line numbers
  Kind kind = Kind::File;
};

// Byte range of a token in its source's text.
struct JsonSpan {
  std::size_t begin = 0, end = 0;
};

enum class JsonType : std::uint8_t { Null, Boolean, Integer, Real, String, Array, Object };
const char* describe(JsonType type);  // "null", "true or false", "a whole number", "a number", "a string", "a list", "an object"

struct JsonNode {
  JsonType type = JsonType::Null;
  bool boolean = false;
  std::int64_t integer = 0;     // Integer
  double real = 0;              // Integer and Real
  std::string text;             // String
  std::string key;              // name in the enclosing object, empty otherwise
  std::vector<JsonNode> items;  // members of an object or list, in file order
  std::string pointer;          // JSON pointer, "" = the document
  const JsonSource* source = nullptr;
  JsonSpan value_span, key_span;  // containers: the span of the opening bracket

  const JsonNode* find(std::string_view name) const;  // member of an object; nullptr when absent or not an object
  JsonNode* find(std::string_view name);
  bool from_override() const { return source != nullptr && source->kind == JsonSource::Kind::Override; }
};

Place place_of(const JsonNode& node);      // of the value
Place key_place_of(const JsonNode& node);  // of the key; of the value where there is none

// Collects diagnostics; keeps the first kMaxProblems errors.
class JsonProblems {
 public:
  void add(Diagnostic problem);
  // An error at the node's value. An override's node turns `code` into OVERRIDE.
  void error(std::string code, const JsonNode& node, std::string text, std::string help = {});
  void error_at_key(std::string code, const JsonNode& node, std::string text, std::string help = {});
  bool empty() const { return list_.empty(); }
  std::size_t count() const { return count_; }  // all that were added, kept or not
  const std::vector<Diagnostic>& list() const { return list_; }
  // A misspelt key was taken for `pointer`: that key is then not reported as missing too.
  void note_misspelt(std::string pointer) { misspelt_.push_back(std::move(pointer)); }
  bool is_misspelt(const std::string& pointer) const;
  // Throws InputError with all problems in order of position, when there is any.
  void throw_if_errors() const;

 private:
  std::vector<Diagnostic> list_;
  std::vector<std::string> misspelt_;
  std::size_t count_ = 0;
};

class JsonDocument {
 public:
  // Text that is not JSON throws InputError (one problem). Duplicate keys are added to `problems`; the first value is kept.
  static JsonDocument parse(std::string_view text, const std::string& name, JsonProblems& problems);
  // Reads a file; EnvironmentError(File) with the system's reason when it cannot be read.
  static JsonDocument read(const std::string& path, JsonProblems& problems);

  const JsonNode& root() const { return *root_; }
  JsonNode& root() { return *root_; }
  // A new source for nodes that come from elsewhere; it lives as long as the document.
  const JsonSource* add_source(JsonSource source);

 private:
  std::vector<std::unique_ptr<JsonSource>> sources_;
  std::unique_ptr<JsonNode> root_;
};

// The value of `text` when it is JSON as a whole, with spans into `source`; nothing when it is not.
std::optional<JsonNode> parse_json_value(std::string_view text, const JsonSource* source, std::string pointer, JsonProblems& problems);
// Sets the pointers of everything below `node` from node.pointer.
void renumber_pointers(JsonNode& node);
std::string escape_pointer(std::string_view segment);  // "~" -> "~0", "/" -> "~1"

// The bytes of a file or, for "-", of standard input. EnvironmentError(File) with the system's reason; InputError when larger than
// kMaxJsonFileBytes.
std::string read_text_file(const std::string& path);

struct IntegerRange {
  std::int64_t min = INT64_MIN, max = INT64_MAX;
};
struct NumberRange {
  double min = -1.7976931348623157e308, max = 1.7976931348623157e308;  // inclusive
  bool above_min = false;                                              // exclude min itself
};

// A node seen as an object with typed members. Copyable handle; the document and the problems must outlive it.
// An absent object (present() == false) behaves as an empty one.
class JsonObject {
 public:
  JsonObject(const JsonNode* node, JsonProblems& problems);  // a node of another type is reported and treated as absent; nullptr = absent

  bool present() const { return node_ != nullptr; }
  const JsonNode* node() const { return node_; }
  const JsonNode* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool is_null(std::string_view key) const;  // present and null (Hugging Face files write this for "default")

  // Reports every member that is not in `known`, with the nearest name, or the key with the unit where only the unit is missing or wrong.
  void only(const std::vector<std::string>& known) const;
  // Reports a missing key at the object, unless only() found it misspelt; true when it is there.
  bool require(std::string_view key, const std::string& help = {}) const;

  // Nothing when absent or, after a report, when of the wrong type or out of range. A whole number may be written 8.0 or 1e3.
  std::optional<std::int64_t> integer(std::string_view key, IntegerRange range = {}) const;
  std::optional<double> number(std::string_view key, NumberRange range = {}) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  std::optional<std::size_t> choice(std::string_view key, const std::vector<std::string>& names) const;  // index into names
  std::optional<std::vector<std::int64_t>> integers(std::string_view key, IntegerRange range = {}) const;
  std::optional<std::vector<double>> numbers(std::string_view key, NumberRange range = {}) const;  // one number = a list of one
  std::optional<std::vector<std::string>> strings(std::string_view key) const;
  JsonObject object(std::string_view key) const;

  JsonProblems& problems() const { return *problems_; }

 private:
  const JsonNode* node_ = nullptr;
  JsonProblems* problems_;
};

// The same checks for a bare node (list items).
std::optional<std::int64_t> read_integer(const JsonNode& node, IntegerRange range, JsonProblems& problems);
std::optional<double> read_number(const JsonNode& node, NumberRange range, JsonProblems& problems);
std::optional<std::string> read_string(const JsonNode& node, JsonProblems& problems);

std::string in_quotes(std::string_view word);                   // "word" in double quotes
std::string join_names(const std::vector<std::string>& names);  // "a, b, c"

}  // namespace steptwin
