// What a verb needs of the world: the result stream, messages on standard error, the terminal, the command line as typed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/format.h"
#include "cli/streams.h"
#include "cli/terminal.h"
#include "schedule/base/diagnostic.h"

namespace steptwin {

enum class Verbosity { Quiet, Normal };

// Standard error. Best effort: a closed standard error is no failure. Quiet drops notes, never errors and warnings.
class Messages {
 public:
  Messages(bool color, Verbosity verbosity) : color_(color), verbosity_(verbosity) {}
  void note(std::string_view line) const;
  void warning(std::string_view line) const;
  void diagnostic(const Diagnostic& diagnostic) const;  // with caret, details and help; the severity word coloured
  void block(std::string_view text) const;              // "error: ..." and its further lines, as they stand
  void raw(std::string_view text) const;                // as it stands, no line end added (progress)
  Verbosity verbosity() const { return verbosity_; }

 private:
  bool color_;
  Verbosity verbosity_;
};

struct Session {
  Output& out;
  Messages messages;
  Terminal terminal;
  std::vector<std::string> arguments;  // argv
  Micro micro() const { return terminal.utf8 ? Micro::Sign : Micro::Letter; }
};

// --db, else $STEPTWIN_DB, else ./steptwin.db.
std::string database_path(const std::string& flag, const EnvironmentVariables& environment);

}  // namespace steptwin
