// steptwin validate: every problem of every file. Exit 1 when a file has errors.
#include <fmt/core.h>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/errors.h"
#include "cli/subject.h"

namespace steptwin {

namespace {

std::vector<Diagnostic> problems_of(const std::string& path, const std::vector<Override>& overrides) {
  try {
    const Subject subject = load_subject({path, overrides, {}, {}});
    std::vector<Diagnostic> problems = judge(subject.schedule).problems;
    if (subject.scenario) problems.insert(problems.begin(), subject.scenario->notes.begin(), subject.scenario->notes.end());
    return problems;
  } catch (const InputError& error) {
    if (exit_code_of(error) == Exit::Usage) throw;  // a wrong --set is the command's fault, not the file's
    return error.problems();
  } catch (const EnvironmentError& error) {
    Diagnostic problem;
    problem.code = "FILE";
    problem.text = error.what();
    problem.help = error.help();
    return {problem};
  }
}

std::string severity(const Diagnostic& problem) {
  switch (problem.severity) {
    case Severity::Error:
      return "error";
    case Severity::Warning:
      return "warning";
    case Severity::Note:
      return "note";
  }
  return {};
}

void add_rows(Table& table, const std::string& path, const std::vector<Diagnostic>& problems) {
  for (const Diagnostic& problem : problems) {
    table.rows.push_back({text_cell(path), number_cell(problem.place.line), number_cell(problem.place.column),
                          text_cell(problem.place.pointer), text_cell(severity(problem)), text_cell(problem.code), text_cell(problem.text),
                          text_cell(problem.help)});
  }
}

}  // namespace

Exit run_validate(const Options& options, Session& session) {
  const std::vector<Override> overrides = parse_overrides(options.list("set"));
  const Format format = format_of(options);
  Table table{{"file", "line", "column", "pointer", "severity", "code", "problem", "help"}, {}};
  std::size_t bad = 0;
  for (const std::string& path : options.positionals()) {
    const std::vector<Diagnostic> problems = problems_of(path, overrides);
    bad += has_errors(problems);
    if (format == Format::Table) {
      for (const Diagnostic& problem : problems) session.messages.diagnostic(problem);
      session.out.write(fmt::format("{}: {}\n", path, has_errors(problems) ? "FAILED" : "ok"));
    } else {
      add_rows(table, path, problems);
    }
  }
  if (format != Format::Table) print_table(session.out, table, format, "steptwin.problems/1");
  return bad == 0 ? Exit::Ok : Exit::CheckFailed;
}

}  // namespace steptwin
