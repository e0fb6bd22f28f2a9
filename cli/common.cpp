#include "cli/common.h"

namespace steptwin {

Format format_of(const Options& options) { return options.flag("json") ? Format::Json : parse_format(options.text("format", "table")); }

std::string database_of(const Options& options) { return database_path(options.text("db"), process_environment); }

void print_warnings(const Store& store, const Session& session) {
  for (const std::string& warning : store.warnings()) session.messages.warning(warning);
}

Store open_for_reading(const Options& options, const Session& session) {
  const std::string path = database_of(options);
  Store store(path, Store::Access::ReadOnly);
  session.messages.note("database " + path);
  print_warnings(store, session);
  return store;
}

void rethrow_own_sql_error(const InputError& error, const std::string& database) {
  const Diagnostic& problem = error.problems().front();
  if (problem.code != "SQL") throw;
  throw EnvironmentError(EnvironmentError::Kind::Database, "the database " + database + " is damaged: " + problem.text,
                         "steptwin runs check tells more; name another file with --db FILE");
}

}  // namespace steptwin
