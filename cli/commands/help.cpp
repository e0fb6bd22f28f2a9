// steptwin help [COMMAND]
#include "cli/help.h"

#include "cli/errors.h"

namespace steptwin {

Exit run_help(const Options& options, Session& session) {
  if (options.positionals().empty()) {
    session.out.write(general_help(HelpDetail::Long));
    return Exit::Ok;
  }
  const std::string& name = options.positionals().front();
  const Verb* verb = find_verb(name);
  if (verb == nullptr) {
    std::vector<std::string> known;
    for (const Verb& row : verb_table()) known.push_back(row.name);
    const std::string near = nearest_name(name, known);
    throw usage_error("unknown command " + name, near.empty() ? "steptwin help lists the commands" : "did you mean " + near + "?");
  }
  session.out.write(verb_help(*verb, HelpDetail::Long));
  return Exit::Ok;
}

}  // namespace steptwin
