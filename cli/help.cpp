#include "cli/help.h"

#include <algorithm>

namespace steptwin {

namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kTextColumn = 28;

// `text` broken at spaces so that lines fit; the first one starts at column `used`, the others at `indent`.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result;
  std::size_t column = indent;
  for (const std::string& word : split_words(text, ' ')) {
    if (column > indent && column + 1 + word.size() > kColumns) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result;
}

std::string entry(const std::string& head, const std::string& text) {
  if (head.size() + 2 > kTextColumn) return head + "\n" + std::string(kTextColumn, ' ') + wrapped(text, kTextColumn) + "\n";
  return pad_right(head, kTextColumn) + wrapped(text, kTextColumn) + "\n";
}

std::string option_entry(const OptionSpec& spec) {
  std::string head = spec.letter != 0 ? std::string("  -") + spec.letter + ", --" : std::string("      --");
  head += spec.name;
  if (spec.kind != ValueKind::Flag) head += std::string(" ") + spec.argument;
  return entry(head, spec.text);
}

std::string indented(const std::string& lines) {
  std::string result;
  for (const std::string& line : split_words(lines, '\n')) result += "  " + line + "\n";
  return result;
}

std::string options_text(std::string_view verb) {
  std::string own, global;
  for (const OptionSpec* spec : options_of(verb)) (std::string_view(spec->verbs) == "*" ? global : own) += option_entry(*spec);
  return (own.empty() ? "" : "\noptions:\n" + own) + "\nglobal options:\n" + global;
}

const char* const kExitCodes =
    "\nexit codes:\n"
    "  0 ok               1 a check failed    2 wrong command line  3 bad input\n"
    "  4 out of memory    5 deadlock          6 file or database    7 device\n"
    "  70 a bug           130 Ctrl-C          143 terminated\n";

const char* const kVariables =
    "\nenvironment:\n"
    "  STEPTWIN_DB     the database when --db is not given\n"
    "  STEPTWIN_COLOR  auto, always or never when --color is not given\n"
    "  STEPTWIN_DATA   folder with scenarios/ and machine profiles\n"
    "  NO_COLOR, CLICOLOR_FORCE, TERM=dumb\n";

}  // namespace

std::string general_help(HelpDetail detail) {
  std::string text = "steptwin rehearses one training step of a large model.\n\nusage: steptwin COMMAND [options]\n\ncommands:\n";
  for (const Verb& verb : verb_table()) text += entry(std::string("  ") + verb.name, verb.summary);
  text += "\nexample:\n  steptwin simulate scenarios/gpt2_pp4.json\n";
  if (detail == HelpDetail::Long) text += options_text("") + kVariables + kExitCodes;
  return text + "\nsteptwin help COMMAND tells more. No network, no telemetry.\n";
}

std::string verb_help(const Verb& verb, HelpDetail detail) {
  std::string usage = std::string("steptwin ") + verb.name + (verb.arguments[0] != 0 ? std::string(" ") + verb.arguments : "");
  std::string text = usage + "\n" + verb.summary + "\n";
  if (detail == HelpDetail::Long && verb.about[0] != 0) text += std::string("\n") + verb.about;
  text += options_text(verb.name) + "\nexample:\n" + indented(verb.example);
  return detail == HelpDetail::Long ? text + kVariables + kExitCodes : text;
}

}  // namespace steptwin
