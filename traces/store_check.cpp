// Is a database file sound? SQLite's own checks, then rows that belong to no run (the bulk tables carry no foreign keys).
#include <fmt/format.h>

#include "traces/store_impl.h"

namespace steptwin {
namespace {

constexpr const char* kBulkTables[] = {"span", "memory_sample"};

void add_rows(Database& database, const char* sql, const char* what, std::vector<std::string>& findings) {
  Statement statement(database, sql);
  while (statement.step()) {
    const std::string text(statement.text(0));
    if (text != "ok") findings.push_back(fmt::format("{}: {}", what, text));
  }
}

}  // namespace

std::vector<std::string> Store::check() const {
  std::vector<std::string> findings;
  Database& database = impl_->database;
  add_rows(database, "PRAGMA integrity_check(20)", "integrity", findings);
  add_rows(database, "PRAGMA foreign_key_check", "row without its parent in table", findings);
  for (const char* table : kBulkTables) {
    const auto orphans = database.integer(
        fmt::format("SELECT count(*) FROM (SELECT DISTINCT run_id FROM {}) WHERE run_id NOT IN (SELECT id FROM run)", table));
    if (orphans > 0) findings.push_back(fmt::format("table {} holds rows of {} runs that are not there", table, orphans));
  }
  return findings;
}

std::string sqlite_version() { return Database(":memory:", Database::Mode::Create).text("SELECT sqlite_version()"); }

}  // namespace steptwin
