// A problem found in an input, as a value: parsers and verify return all of them at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace steptwin {

enum class Severity : std::uint8_t { Error, Warning, Note };

// Where in a text file. line and column start at 1 (columns in code points); 0 = no position known.
struct Place {
  std::string file;
  int line = 0;
  int column = 0;
  int length = 0;         // code points to underline; 0 = just the column
  std::string pointer;    // JSON pointer, empty when the file is not JSON
  std::string source;     // the source line, for the caret display
};

struct Diagnostic {
  Severity severity = Severity::Error;
  std::string code;   // stable upper-case code: SIZE, COMM-ORDER, DEADLOCK, UNKNOWN-KEY, ...
  std::string text;   // one clear sentence: what is wrong
  std::string help;   // what to do; may be empty
  Place place;        // file position; empty file = none
  std::vector<std::string> details;  // further lines: op lines with arrow, the waiting chain
};

bool has_errors(const std::vector<Diagnostic>& diagnostics);

// A word of an input as messages show it: behind `most` bytes it is cut, at a character, and ends in "...".
std::string clipped(std::string_view word, std::size_t most = 60);

// "error: ...", position with caret, details, help; several lines, no trailing newline, no colour.
std::string format_diagnostic(const Diagnostic& diagnostic);

// The nearest of `known` to `word` by Damerau-Levenshtein distance <= 2 or common prefix (the shortest); empty when none is near.
std::string nearest_name(const std::string& word, const std::vector<std::string>& known);

}  // namespace steptwin
