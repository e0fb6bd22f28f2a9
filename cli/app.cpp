#include "cli/app.h"

#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/errors.h"
#include "cli/help.h"

namespace steptwin {

namespace {

ColorChoice color_choice(const std::string& word) {
  if (word == "always") return ColorChoice::Always;
  return word == "never" ? ColorChoice::Never : ColorChoice::Auto;
}

const Verb& verb_named(const std::string& name) {
  if (const Verb* verb = find_verb(name)) return *verb;
  std::vector<std::string> known;
  std::string list;
  for (const Verb& verb : verb_table()) {
    known.push_back(verb.name);
    list += (list.empty() ? "" : ", ") + known.back();
  }
  const std::string near = nearest_name(name, known);
  throw usage_error("unknown command " + name, near.empty() ? "the commands of this version are " + list : "did you mean " + near + "?");
}

Terminal terminal_for(const Options& options) {
  const std::string color = options.text("color", process_environment("STEPTWIN_COLOR"));
  return detect_terminal(color_choice(color), options.flag("ascii") ? CharacterSet::Ascii : CharacterSet::Auto, process_environment);
}

void check_positionals(const Verb& verb, const Options& options) {
  const std::size_t count = options.positionals().size();
  const std::string usage = std::string("steptwin ") + verb.name + " " + verb.arguments;
  if (count < verb.least) throw usage_error(std::string("missing ") + verb.missing, "usage: " + usage);
  if (count > verb.most) throw usage_error("unexpected argument " + options.positionals()[verb.most], "usage: " + usage);
}

// -h anywhere asks for the short text, --help for the long one.
HelpDetail help_detail(const std::vector<std::string>& arguments) {
  for (const std::string& word : arguments) {
    if (word == "--help") return HelpDetail::Long;
  }
  return HelpDetail::Short;
}

Exit run_without_verb(const Options& options, Session& session) {
  if (options.flag("help")) {
    session.out.write(general_help(help_detail(session.arguments)));
    return Exit::Ok;
  }
  session.messages.block(general_help(HelpDetail::Short));
  return Exit::Usage;
}

// `messages` is replaced as soon as the options say how errors are to look.
Exit dispatch(const SplitArguments& split, const std::vector<std::string>& arguments, Output& out, Messages& messages) {
  std::vector<std::string> words = split.before;
  words.insert(words.end(), split.after.begin(), split.after.end());
  const Verb* verb = split.verb.empty() ? nullptr : &verb_named(split.verb);
  const Options options = parse_options(split.verb, words);
  const Terminal terminal = terminal_for(options);
  messages = Messages(terminal.err_color, options.flag("quiet") ? Verbosity::Quiet : Verbosity::Normal);
  Session session{out, messages, terminal, arguments};
  if (options.flag("version")) return run_version(options, session);
  if (verb == nullptr) return run_without_verb(options, session);
  if (options.flag("help")) {
    out.write(verb_help(*verb, help_detail(arguments)));
    return Exit::Ok;
  }
  check_positionals(*verb, options);
  return verb->run(options, session);
}

// Colour of error messages that come before or instead of parsed options.
Messages early_messages() {
  const ColorChoice choice = color_choice(process_environment("STEPTWIN_COLOR"));
  return Messages(detect_terminal(choice, CharacterSet::Auto, process_environment).err_color, Verbosity::Normal);
}

}  // namespace

Exit run_app(const std::vector<std::string>& arguments) {
  Output out(STDOUT_FILENO, "standard output");
  Messages messages = early_messages();
  Exit result = Exit::Bug;
  try {
    const std::vector<std::string> words(arguments.begin() + 1, arguments.end());
    result = dispatch(split_arguments(words), arguments, out, messages);
  } catch (...) {
    result = report(std::current_exception(), messages);
  }
  try {
    out.flush();
  } catch (...) {
    return report(std::current_exception(), messages);
  }
  return result;
}

}  // namespace steptwin
