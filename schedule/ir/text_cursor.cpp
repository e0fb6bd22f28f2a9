#include "schedule/ir/text_cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "schedule/ir/limits.h"
#include "schedule/ir/text_rules.h"

namespace steptwin {
namespace {

constexpr std::size_t kLongestSuggested = 48;  // longer words are not worth an edit distance
constexpr std::size_t kMostCandidates = 5000;
constexpr std::size_t kMostSuggestions = 50;
constexpr std::size_t kLongestSource = 400;  // longer lines are not shown with a caret anyway

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_mark_char(char c) { return c == '[' || c == ']' || c == '{' || c == '}'; }
bool ends_word(char c) { return is_blank(c) || is_mark_char(c) || c == '"' || c == '#'; }

int code_points(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string shown(const Token& token) {
  if (token.kind == Token::Kind::End) return "the end of the line";
  return fmt::format("'{}'", clipped(token.text));
}

struct Unit {
  std::string_view name;
  std::int64_t value;
};
constexpr Unit kSizeUnits[] = {{"", 1}, {"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", std::int64_t{1} << 40}};
constexpr Unit kTimeUnits[] = {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};

// digits[.digits]unit as an exact multiple of the base unit; none when it is not exact or not in int64.
template <std::size_t N>
std::optional<std::int64_t> with_unit(std::string_view text, const Unit (&units)[N]) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto unit = std::find_if(std::begin(units), std::end(units), [&](const Unit& u) { return u.name == text.substr(end); });
  if (unit == std::end(units)) return std::nullopt;
  const std::size_t dot = std::min(text.substr(0, end).find('.'), end);
  const auto whole = to_number(text.substr(0, dot));
  std::int64_t value = 0;
  if (!whole || __builtin_mul_overflow(*whole, unit->value, &value)) return std::nullopt;
  if (dot == end) return value;
  const std::string_view fraction = text.substr(dot + 1, end - dot - 1);
  const auto part = to_number(fraction);
  if (!part || fraction.size() > 9) return std::nullopt;
  std::int64_t scale = 1, scaled = 0;
  for (std::size_t i = 0; i < fraction.size(); ++i) scale *= 10;
  if (__builtin_mul_overflow(*part, unit->value, &scaled) || scaled % scale != 0) return std::nullopt;
  if (__builtin_add_overflow(value, scaled / scale, &value)) return std::nullopt;
  return value;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<std::int64_t> to_number(std::string_view digits) {
  if (digits.empty() || digits.front() < '0' || digits.front() > '9') return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

void LineCursor::start(std::string_view line, int number) {
  line_ = line, number_ = number, pos_ = 0, failed_ = false;
  advance();
}

Token LineCursor::take() {
  const Token token = next_;
  advance();
  return token;
}

void LineCursor::advance() {
  if (failed_) return;
  while (pos_ < line_.size() && is_blank(line_[pos_])) ++pos_;
  if (pos_ == line_.size() || line_[pos_] == '#') {
    next_ = {Token::Kind::End, {}, std::min(pos_, line_.size()), 1};
    return;
  }
  if (line_[pos_] == '"') return lex_string();
  std::size_t end = pos_ + 1;
  const bool mark = is_mark_char(line_[pos_]);
  while (!mark && end < line_.size() && !ends_word(line_[end])) ++end;
  next_ = {mark ? Token::Kind::Mark : Token::Kind::Word, line_.substr(pos_, end - pos_), pos_, end - pos_};
  pos_ = end;
}

bool LineCursor::lex_escape(std::size_t& i, std::string& out) const {
  const char c = i + 1 < line_.size() ? line_[i + 1] : '\0';
  if (c == 'x' && i + 3 < line_.size()) {
    const int high = hex_digit(line_[i + 2]), low = hex_digit(line_[i + 3]);
    if (high < 0 || low < 0) return false;
    out += static_cast<char>(high * 16 + low);
    i += 4;
    return true;
  }
  constexpr std::string_view kEscapes = "\"\\nt", kMeaning = "\"\\\n\t";
  const std::size_t which = kEscapes.find(c);
  if (which == std::string_view::npos || c == '\0') return false;
  out += kMeaning[which];
  i += 2;
  return true;
}

void LineCursor::lex_string() {
  const std::size_t first = pos_;
  std::string value;
  std::size_t i = first + 1;
  while (i < line_.size() && line_[i] != '"') {
    if (line_[i] != '\\') {
      value += line_[i++];
    } else if (!lex_escape(i, value)) {
      return fail({Token::Kind::Word, {}, i, 2}, "SYNTAX", "unknown escape in a quoted name", "use \\\" \\\\ \\n \\t or \\xHH");
    }
  }
  if (i >= line_.size()) return fail({Token::Kind::Word, {}, first, 1}, "SYNTAX", "the quoted name does not end", "add a closing \"");
  pos_ = i + 1;
  strings_.push_back(std::move(value));
  next_ = {Token::Kind::String, strings_.back(), first, pos_ - first};
}

bool LineCursor::take_word(std::string_view word) {
  if (!next_.is_word(word)) return false;
  advance();
  return true;
}

bool LineCursor::take_mark(char mark) {
  if (!next_.is_mark(mark)) return false;
  advance();
  return true;
}

void LineCursor::expect_mark(char mark) {
  if (!take_mark(mark)) fail(next_, "SYNTAX", fmt::format("expected '{}', found {}", mark, shown(next_)));
}

std::string_view LineCursor::name(const char* what) {
  const Token token = next_;
  if (token.kind == Token::Kind::String || (token.kind == Token::Kind::Word && is_plain_name(token.text))) return take().text;
  expected(what,
           token.kind == Token::Kind::Word ? "quote a name that is not letters, digits and _ . : / @ -, or that is a clause word" : "");
  return {};
}

std::int64_t LineCursor::number(const char* what, std::int64_t most) {
  const auto value = next_.kind == Token::Kind::Word ? to_number(next_.text) : std::nullopt;
  if (!value && (next_.kind != Token::Kind::Word || next_.text.find_first_not_of("0123456789") != std::string_view::npos)) {
    expected(what);
  } else if (!value || *value > most) {
    fail(next_, "NUMBER", fmt::format("{} {} is too large", what, clipped(next_.text)), fmt::format("the largest is {}", most));
  } else {
    advance();
    return *value;
  }
  return 0;
}

double LineCursor::real(const char* what) {
  double value = 0;
  const char* const last = next_.text.data() + next_.text.size();
  const bool word = next_.kind == Token::Kind::Word;
  const auto [end, error] = word ? std::from_chars(next_.text.data(), last, value) : std::from_chars_result{last, std::errc::invalid_argument};
  if (error != std::errc() || end != last || !std::isfinite(value)) {
    expected(what, "a finite number such as 0.1, 65536 or 1e-05");
    return 0;
  }
  advance();
  return value;
}

Bytes LineCursor::size(const char* what) {
  const auto value = next_.kind == Token::Kind::Word ? with_unit(next_.text, kSizeUnits) : std::nullopt;
  if (!value || *value > kMaxBytes) {
    fail(next_, value ? "NUMBER" : "SYNTAX", fmt::format("expected {}, found {}", what, shown(next_)),
         value ? "sizes go up to 1024TiB" : "write whole bytes such as 96, 4KiB, 6MiB, 2GiB");
    return {};
  }
  advance();
  return Bytes(*value);
}

Duration LineCursor::time(const char* what) {
  const auto value = next_.kind == Token::Kind::Word ? with_unit(next_.text, kTimeUnits) : std::nullopt;
  if (value && *value > kMaxTimeNs) {
    fail(next_, "NUMBER", fmt::format("{} {} is too large", what, clipped(next_.text)), "the largest is 1000000s");
    return {};
  }
  if (!value) {
    expected(what, "write whole nanoseconds such as 250ns, 3us, 1.5ms, 2s");
    return {};
  }
  advance();
  return Duration(*value);
}

DType LineCursor::dtype() {
  std::vector<std::string> known;
  for (std::size_t i = 0; i < kDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    if (take_word(name_of(type))) return type;
    known.emplace_back(name_of(type));
  }
  const std::string near = suggestion(next_.text, known);
  expected("an element type", near.empty() ? "one of fp32, bf16, fp16, int64, int32, uint8" : near);
  return DType::Bf16;
}

std::vector<std::int64_t> LineCursor::list(const char* what, std::int64_t most, std::size_t count) {
  if (next_.kind != Token::Kind::Word) {
    expected(what);
    return {};
  }
  const Token token = take();
  return list_in(token, token.text, what, most, count);
}

std::vector<std::int64_t> LineCursor::list_in(const Token& token, std::string_view text, const char* what, std::int64_t most,
                                              std::size_t count) {
  std::vector<std::int64_t> out;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    const std::size_t dash = item.find('-');
    const auto first = to_number(item.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : to_number(item.substr(dash + 1));
    if (!first || !last || *last < *first) {
      fail(token, "SYNTAX", fmt::format("expected {}, found {}", what, shown(token)),
           "write numbers and ascending ranges without blanks: 0,3,5-7");
      return {};
    }
    if (*last > most || static_cast<std::uint64_t>(*last - *first) >= count - out.size()) {
      fail(token, "NUMBER", fmt::format("{} goes beyond its bounds", what),
           fmt::format("values up to {}, at most {} of them", most, count));
      return {};
    }
    for (std::int64_t v = *first; v <= *last; ++v) out.push_back(v);
    if (comma == text.size()) return out;
    text.remove_prefix(comma + 1);
  }
}

void LineCursor::fail(const Token& token, const char* code, std::string text, std::string help) {
  if (failed_) return;
  Diagnostic problem{Severity::Error, code, std::move(text), std::move(help), {}, {}};
  const std::size_t at = std::min(token.at, line_.size());
  problem.place = {file_, number_, code_points(line_.substr(0, at)) + 1, std::max(1, code_points(line_.substr(at, token.length))), {}, {}};
  if (line_.size() <= kLongestSource) problem.place.source = std::string(line_);
  problems_.push_back(std::move(problem));
  failed_ = true;
  pos_ = line_.size();
  next_ = {Token::Kind::End, {}, pos_, 1};
}

void LineCursor::expected(const char* what, std::string help) {
  fail(next_, "SYNTAX", fmt::format("expected {}, found {}", what, shown(next_)), std::move(help));
}

std::string LineCursor::suggestion(std::string_view word, const std::vector<std::string>& known) const {
  if (word.size() > kLongestSuggested || known.size() > kMostCandidates || problems_.size() > kMostSuggestions) return {};
  const std::string near = nearest_name(std::string(word), known);
  return near.empty() ? near : fmt::format("did you mean '{}'?", near);
}

}  // namespace steptwin
