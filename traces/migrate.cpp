#include "traces/migrate.h"

#include <fmt/format.h>

#include "schedule/base/error.h"
#include "traces/embedded.h"

namespace steptwin {
namespace {

std::int64_t file_version(Database& database) { return database.integer("PRAGMA user_version"); }

[[noreturn]] void refuse(const std::string& what, const std::string& help) {
  throw EnvironmentError(EnvironmentError::Kind::Database, what, help);
}

}  // namespace

Contents check_contents(Database& database, std::int64_t version) {
  // In this order: another process may create the schema between the two questions.
  if (database.integer("PRAGMA page_count") == 0) return Contents::Empty;
  const std::int64_t id = database.integer("PRAGMA application_id");
  if (id != kApplicationId) {
    refuse(fmt::format("{} is not a steptwin database (application_id {})", database.path(), id),
           "name another file with --db FILE; this one was left as it is");
  }
  const std::int64_t found = file_version(database);
  if (found > version) {
    refuse(fmt::format("{} was written by a newer steptwin (schema {}); this one knows schema {}", database.path(), found, version),
           "use the newer steptwin, or name another file with --db FILE; this one was left as it is");
  }
  return Contents::Ours;
}

void create_schema(Database& database) {
  Transaction transaction(database, Transaction::Lock::Exclusive);
  // Holding the lock has given the file its first page. Was another process faster, or a stranger?
  const bool untouched = database.integer("PRAGMA application_id") == 0 && database.integer("SELECT count(*) FROM sqlite_schema") == 0;
  if (!untouched && check_contents(database) == Contents::Ours) return;
  database.execute(kSchemaSql[0].text);
  database.execute("INSERT INTO meta VALUES('min_reader', '1'), ('units', 'times: ns from the start of the run; sizes: bytes')");
  transaction.commit();
}

void migrate(Database& database, std::span<const Migration> steps, std::int64_t version) {
  if (file_version(database) >= version) return;
  Transaction transaction(database, Transaction::Lock::Exclusive);
  for (std::int64_t at = file_version(database); at < version; ++at) {
    const Migration* step = nullptr;
    for (const Migration& candidate : steps)
      if (candidate.from == at) step = &candidate;
    if (step == nullptr) {
      refuse(fmt::format("{} has schema {}, and no way leads from there to schema {}", database.path(), at, version),
             "name another file with --db FILE; this one was left as it is");
    }
    database.execute(step->sql);
    database.execute(fmt::format("PRAGMA user_version = {}", at + 1));
  }
  transaction.commit();
}

std::span<const Migration> known_migrations() {
  static constexpr Migration kSteps[] = {
      // comm_summary counted the time of a group once for every member.
      {1, R"(DROP VIEW comm_summary;
CREATE VIEW comm_summary AS
  SELECT k.run_id, k.rank, t.communicator, t.kind, t.n, t.bytes, t.wait_ns, t.transfer_ns
  FROM rank k JOIN (SELECT run_id, rank, communicator, kind, sum(ops) AS n, sum(bytes) AS bytes, sum(wait_ns) AS wait_ns,
                           sum(transfer_ns) AS transfer_ns
                    FROM (SELECT run_id, rank, communicator, kind, count(*) AS ops, sum(bytes) AS bytes,
                                 min(start_ns) - min(ready_ns) AS wait_ns, max(end_ns) - min(start_ns) AS transfer_ns
                          FROM spans WHERE communicator IS NOT NULL
                          GROUP BY run_id, rank, communicator, kind, step, coalesce(-1 - group_no, op))
                    GROUP BY run_id, rank, communicator, kind) t
    ON t.run_id = k.run_id AND t.rank = k.stand_in;
)"},
  };
  return kSteps;
}

}  // namespace steptwin
