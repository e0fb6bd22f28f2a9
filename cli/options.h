// Options: one table (options.cpp) feeds parsing and help. Parsing is Boost.Program_options without prefix guessing; numbers are
// read strictly; --set collects; a mistyped option names the nearest right one. Every error is an InputError with code USAGE (exit 2).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace steptwin {

enum class ValueKind {
  Flag,  // no value
  Text,
  List,    // repeatable, one value each time
  Whole,   // integer >= 1
  Choice,  // one of the words of `argument`, separated by |
};

struct OptionSpec {
  const char* name;  // without dashes
  char letter;       // 0 = none
  ValueKind kind;
  const char* argument;  // what help shows; for Choice the words
  const char* verbs;     // "simulate show", or "*" = every verb
  const char* text;
};

const std::vector<OptionSpec>& option_table();
std::vector<const OptionSpec*> options_of(std::string_view verb);  // table order, global ones last

// Parsed options of one verb. Asking for a name the table lacks is a bug (InternalError).
class Options {
 public:
  bool flag(const char* name) const;
  bool given(const char* name) const;
  std::string text(const char* name, const std::string& fallback = {}) const;
  std::int64_t whole(const char* name, std::int64_t fallback) const;
  const std::vector<std::string>& list(const char* name) const;
  const std::vector<std::string>& positionals() const { return positionals_; }

 private:
  friend Options parse_options(std::string_view verb, const std::vector<std::string>& arguments);
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::vector<std::string> positionals_;
};

Options parse_options(std::string_view verb, const std::vector<std::string>& arguments);

// argv without the program name, cut at the verb: the first word that is neither an option nor the value of one.
struct SplitArguments {
  std::vector<std::string> before;  // options; those of the verb may stand here too
  std::string verb;                 // empty = none
  std::vector<std::string> after;
};
SplitArguments split_arguments(const std::vector<std::string>& arguments);

std::vector<std::string> split_words(std::string_view text, char separator);

}  // namespace steptwin
