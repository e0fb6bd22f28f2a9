#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace steptwin {

namespace {

bool names_utf8(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
}

int terminal_width() {
  winsize size{};
  for (int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  }
  return 80;
}

Stream stream_of(int descriptor) { return ::isatty(descriptor) == 1 ? Stream::Tty : Stream::Plain; }

}  // namespace

std::string process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool use_color(ColorChoice choice, Stream stream, const EnvironmentVariables& environment) {
  if (choice != ColorChoice::Auto) return choice == ColorChoice::Always;
  if (!environment("NO_COLOR").empty() || environment("TERM") == "dumb") return false;
  const std::string forced = environment("CLICOLOR_FORCE");
  if (!forced.empty() && forced != "0") return true;
  return stream == Stream::Tty;
}

bool use_utf8(CharacterSet choice, const EnvironmentVariables& environment) {
  if (choice == CharacterSet::Ascii) return false;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = environment(name);
    if (!value.empty()) return names_utf8(value);
  }
  return false;
}

Terminal detect_terminal(ColorChoice color, CharacterSet characters, const EnvironmentVariables& environment) {
  Terminal terminal;
  terminal.out_color = use_color(color, stream_of(STDOUT_FILENO), environment);
  terminal.err_color = use_color(color, stream_of(STDERR_FILENO), environment);
  terminal.err_tty = stream_of(STDERR_FILENO) == Stream::Tty && environment("TERM") != "dumb";
  terminal.utf8 = use_utf8(characters, environment);
  terminal.width = terminal_width();
  return terminal;
}

std::string styled(bool color, const char* sgr, std::string_view text) {
  if (!color) return std::string(text);
  return "\x1b[" + std::string(sgr) + "m" + std::string(text) + "\x1b[0m";
}

}  // namespace steptwin
