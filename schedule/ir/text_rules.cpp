#include "schedule/ir/text_rules.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

namespace steptwin {
namespace {

// Sorted; looked up by binary search.
constexpr std::array<std::string_view, 31> kClauseWords = {"after", "all",    "at",       "axes",  "bytes",  "dtype",    "for",   "from",
                                                           "group", "groups", "hold",     "lane",  "layout", "lazy", "max",      "named", "none",
                                                           "of",    "on",     "priority", "ranks", "read",   "resident", "root",  "stages",
                                                           "time",  "to",     "update",   "when",  "work",   "write"};
static_assert(std::is_sorted(kClauseWords.begin(), kClauseWords.end()));

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool all_digits(std::string_view word) { return !word.empty() && std::all_of(word.begin(), word.end(), is_digit); }

void append_quoted(std::string& out, std::string_view name) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (char c : name) {
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += "\\x", out += kHex[static_cast<unsigned char>(c) >> 4], out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

struct Unit {
  std::int64_t value;
  const char* name;
};

void append_unit(std::string& out, std::int64_t value, std::initializer_list<Unit> units, const char* base) {
  for (const Unit& unit : units) {
    if (value == 0 || value % unit.value != 0) continue;
    append_number(out, value / unit.value);
    out += unit.name;
    return;
  }
  append_number(out, value);
  out += base;
}

}  // namespace

bool is_clause_word(std::string_view word) {
  constexpr std::string_view kFirstLetters = "abdfghlmnoprstuw";
  if (word.size() < 2 || word.size() > 8 || kFirstLetters.find(word.front()) == std::string_view::npos)
    return false;  // most names end here
  return std::binary_search(kClauseWords.begin(), kClauseWords.end(), word);
}

bool is_plain_name(std::string_view name) {
  const auto is_mark = [](char c) { return c == '.' || c == '_' || c == ':' || c == '/' || c == '@' || c == '-'; };
  if (name.empty() || !is_letter(name.front()) || is_clause_word(name)) return false;
  return std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c) || is_mark(c); });
}

bool is_label_word(std::string_view word) {
  if (word.empty()) return false;
  for (Phase phase : kTextPhases)
    if (word.size() == 1 && word.front() == *name_of(phase)) return true;  // names of phases are single letters
  const char c = word.front();
  if (c == 'L' || c == 'c' || c == 's') return all_digits(word.substr(1));
  return word.starts_with("mb") && all_digits(word.substr(2));
}

void append_number(std::string& out, std::int64_t value) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_name(std::string& out, std::string_view name) {
  if (is_plain_name(name)) {
    out += name;
  } else {
    append_quoted(out, name);
  }
}

void append_segment(std::string& out, std::string_view name) {
  if (is_label_word(name)) {
    append_quoted(out, name);
  } else {
    append_name(out, name);
  }
}

void append_size(std::string& out, Bytes bytes) {
  append_unit(out, bytes.value, {{std::int64_t{1} << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}}, "B");
}

void append_time(std::string& out, Duration time) {
  append_unit(out, ns(time), {{1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}}, "ns");
}

void append_list(std::string& out, const std::vector<std::int64_t>& values) {
  for (std::size_t i = 0; i < values.size();) {
    std::size_t j = i + 1;
    while (j < values.size() && values[j] == values[j - 1] + 1) ++j;
    if (j - i < 3) j = i + 1;
    if (i > 0) out += ',';
    append_number(out, values[i]);
    if (j > i + 1) out += '-', append_number(out, values[j - 1]);
    i = j;
  }
}

bool is_index_handle(std::string_view word, char prefix, std::size_t count) {
  if (word.size() < 2 || word.size() > 11 || word.front() != prefix || !all_digits(word.substr(1))) return false;
  if (word[1] == '0' && word.size() > 2) return false;
  std::uint64_t index = 0;
  std::from_chars(word.data() + 1, word.data() + word.size(), index);
  return index < count;
}

Handles::Handles(char prefix, std::vector<std::string_view> names) : prefix_(prefix), names_(std::move(names)) {
  std::unordered_map<std::string_view, std::uint32_t> uses;
  uses.reserve(names_.size());
  for (std::string_view name : names_) ++uses[name];
  by_index_.resize(names_.size());
  for (std::size_t i = 0; i < names_.size(); ++i)
    by_index_[i] = names_[i].empty() || uses[names_[i]] > 1 || is_index_handle(names_[i], prefix, names_.size());
}

Handles Handles::of_buffers(const Schedule& schedule, const Program& program) {
  std::vector<std::string_view> names;
  names.reserve(program.buffers.size());
  for (const Buffer& buffer : program.buffers)
    names.push_back(buffer.name.value < schedule.names.size() ? std::string_view(schedule.names[buffer.name.value]) : std::string_view());
  return Handles('b', std::move(names));
}

Handles Handles::of_layouts(const Schedule& schedule) {
  std::vector<std::string_view> names;
  for (const Layout& layout : schedule.layouts) names.push_back(layout.name);
  return Handles('l', std::move(names));
}

void Handles::append(std::string& out, std::uint32_t index) const {
  if (index >= names_.size()) {
    out += '?';
    append_number(out, index);
  } else if (by_index_[index]) {
    out += prefix_;
    append_number(out, index);
  } else {
    append_name(out, names_[index]);
  }
}

}  // namespace steptwin
