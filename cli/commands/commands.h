// The verbs: one file each, one row in the table in verbs.cpp.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "cli/exit_code.h"
#include "cli/options.h"
#include "cli/session.h"

namespace steptwin {

struct Verb {
  const char* name;
  const char* arguments;    // "SCENARIO [options]"
  const char* summary;      // one line, lower case, no full stop
  const char* about;        // a few lines for --help
  const char* example;      // lines of shell
  std::size_t least, most;  // number of positionals
  const char* missing;      // what is missing when there are fewer: "SCENARIO"
  Exit (*run)(const Options& options, Session& session);
};

const std::vector<Verb>& verb_table();
const Verb* find_verb(std::string_view name);

Exit run_simulate(const Options& options, Session& session);
Exit run_execute(const Options& options, Session& session);
Exit run_calibrate(const Options& options, Session& session);
Exit run_compare(const Options& options, Session& session);
Exit run_validate(const Options& options, Session& session);
Exit run_show(const Options& options, Session& session);
Exit run_query(const Options& options, Session& session);
Exit run_runs(const Options& options, Session& session);
Exit run_trace(const Options& options, Session& session);
Exit run_doctor(const Options& options, Session& session);
Exit run_version(const Options& options, Session& session);
Exit run_help(const Options& options, Session& session);

}  // namespace steptwin
