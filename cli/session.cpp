#include "cli/session.h"

#include <unistd.h>

#include <cerrno>

namespace steptwin {

namespace {

void write_error(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Colours the severity word that opens the text: "error:", "warning:", "note:".
std::string with_severity(bool color, std::string_view text) {
  for (const auto& [word, sgr] : {std::pair{"error:", "1;31"}, std::pair{"warning:", "1;33"}, std::pair{"note:", "1;36"}}) {
    const std::string_view prefix = word;
    if (text.substr(0, prefix.size()) == prefix) return styled(color, sgr, prefix) + std::string(text.substr(prefix.size()));
  }
  return std::string(text);
}

}  // namespace

void Messages::note(std::string_view line) const {
  if (verbosity_ != Verbosity::Quiet) write_error(printable(line) + "\n");
}

void Messages::warning(std::string_view line) const { block("warning: " + std::string(line)); }

void Messages::diagnostic(const Diagnostic& diagnostic) const {
  if (diagnostic.severity == Severity::Note && verbosity_ == Verbosity::Quiet) return;
  block(format_diagnostic(diagnostic));
}

void Messages::block(std::string_view text) const { write_error(with_severity(color_, printable(text)) + "\n"); }

void Messages::raw(std::string_view text) const { write_error(text); }

std::string database_path(const std::string& flag, const EnvironmentVariables& environment) {
  if (!flag.empty()) return flag;
  const std::string stated = environment("STEPTWIN_DB");
  return stated.empty() ? "./steptwin.db" : stated;
}

}  // namespace steptwin
