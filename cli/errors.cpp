#include "cli/errors.h"

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

namespace steptwin {

namespace {

constexpr std::array<std::string_view, 8> kCommandLineCodes{"USAGE", "LAUNCH", "OVERRIDE", "RUN", "RANK", "QUERY", "SQL", "SQL-STOPPED"};

bool is_command_line(const Diagnostic& problem) {
  return problem.severity != Severity::Error ||
         std::find(kCommandLineCodes.begin(), kCommandLineCodes.end(), problem.code) != kCommandLineCodes.end();
}

std::string with_help(const std::string& text, const std::string& help) { return help.empty() ? text : text + "\n  help: " + help; }

}  // namespace

InputError usage_error(const std::string& text, const std::string& help) {
  Diagnostic problem;
  problem.code = "USAGE";
  problem.text = text;
  problem.help = help;
  return InputError(problem);
}

Exit exit_code_of(const InputError& error) {
  const auto& problems = error.problems();
  return std::all_of(problems.begin(), problems.end(), is_command_line) ? Exit::Usage : Exit::BadInput;
}

Exit exit_code_of(const EnvironmentError& error) {
  return error.kind() == EnvironmentError::Kind::Device ? Exit::Device : Exit::Environment;
}

Exit report(const std::exception_ptr& exception, const Messages& messages) {
  try {
    std::rethrow_exception(exception);
  } catch (const InputError& error) {
    for (Diagnostic problem : error.problems()) {
      if (problem.code == "USAGE") problem.code.clear();  // says nothing to a person
      messages.diagnostic(problem);
    }
    return exit_code_of(error);
  } catch (const EnvironmentError& error) {
    messages.block(with_help(std::string("error: ") + error.what(), error.help()));
    return exit_code_of(error);
  } catch (const std::bad_alloc&) {
    messages.block("error: this computer has not enough memory for the run\n  help: --trace summary or --fold on need less");
    return Exit::Environment;
  } catch (const std::exception& error) {
    messages.block(std::string("error: internal error: ") + error.what() +
                   "\n  help: this is a bug in steptwin; please report the command and its input");
  } catch (...) {
    messages.block("error: internal error of unknown kind\n  help: this is a bug in steptwin; please report the command and its input");
  }
  return Exit::Bug;
}

}  // namespace steptwin
