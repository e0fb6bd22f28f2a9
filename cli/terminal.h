// What the terminal can show: colour per stream, width, UTF-8. Colour: --color, else NO_COLOR (set and not empty) turns it off, else
// CLICOLOR_FORCE turns it on, else that stream must be a TTY; TERM=dumb turns it off unless --color always was typed.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace steptwin {

enum class ColorChoice { Auto, Always, Never };
enum class CharacterSet { Auto, Ascii };

// Reads an environment variable; empty when unset (an empty variable counts as unset everywhere here).
using EnvironmentVariables = std::function<std::string(const char* name)>;
std::string process_environment(const char* name);

struct Terminal {
  bool out_color = false;
  bool err_color = false;
  bool err_tty = false;  // a redrawn progress line may be shown
  bool utf8 = false;     // box characters, the micro sign
  int width = 80;
};

enum class Stream { Tty, Plain };
bool use_color(ColorChoice choice, Stream stream, const EnvironmentVariables& environment);
bool use_utf8(CharacterSet choice, const EnvironmentVariables& environment);
Terminal detect_terminal(ColorChoice color, CharacterSet characters, const EnvironmentVariables& environment);

// `text` wrapped in an SGR sequence ("1;31") when `color` holds.
std::string styled(bool color, const char* sgr, std::string_view text);

}  // namespace steptwin
