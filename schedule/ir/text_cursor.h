// Reads one line of the text form token by token and collects what is wrong with it. After the first failure of a line
// the cursor stands at its end, so that reading loops stop by themselves and every line reports one problem at most.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/base/diagnostic.h"
#include "schedule/base/dtype.h"
#include "schedule/base/units.h"

namespace steptwin {

struct Token {
  enum class Kind : std::uint8_t { Word, String, Mark, End };  // Mark: one of [ ] { }
  Kind kind = Kind::End;
  std::string_view text;  // a String without quotes and escapes
  std::size_t at = 0;     // byte offset in the line
  std::size_t length = 0;

  bool is_word(std::string_view word) const { return kind == Kind::Word && text == word; }
  bool is_mark(char mark) const { return kind == Kind::Mark && text.front() == mark; }
};

class LineCursor {
 public:
  explicit LineCursor(std::string file) : file_(std::move(file)) {}

  void start(std::string_view line, int number);
  const Token& peek() const { return next_; }
  Token take();
  bool at_end() const { return next_.kind == Token::Kind::End; }
  bool failed() const { return failed_; }
  bool take_word(std::string_view word);
  bool take_mark(char mark);
  void expect_mark(char mark);

  // Each reads one token; on anything else the line fails and the value is 0 or empty. `what` names it in the message.
  std::string_view name(const char* what);
  std::int64_t number(const char* what, std::int64_t most);
  double real(const char* what);  // finite
  Bytes size(const char* what);
  Duration time(const char* what);
  DType dtype();
  // 0,3,5-7: values up to `most`, at most `count` of them.
  std::vector<std::int64_t> list(const char* what, std::int64_t most, std::size_t count);
  std::vector<std::int64_t> list_in(const Token& token, std::string_view text, const char* what, std::int64_t most, std::size_t count);

  void fail(const Token& token, const char* code, std::string text, std::string help = {});
  void expected(const char* what, std::string help = {});  // fails at the next token
  // "did you mean 'x'?", or empty. Gives up on long words, long lists and after many problems (time stays linear).
  std::string suggestion(std::string_view word, const std::vector<std::string>& known) const;

  const std::vector<Diagnostic>& problems() const { return problems_; }
  void add_problem(Diagnostic problem) { problems_.push_back(std::move(problem)); }

 private:
  void advance();
  void lex_string();
  bool lex_escape(std::size_t& i, std::string& out) const;

  std::string file_;
  std::string_view line_;
  int number_ = 0;
  std::size_t pos_ = 0;
  Token next_;
  bool failed_ = false;
  std::deque<std::string> strings_;  // decoded quoted strings; views into them stay valid
  std::vector<Diagnostic> problems_;
};

std::optional<std::int64_t> to_number(std::string_view digits);  // decimal digits only, fits int64

}  // namespace steptwin
