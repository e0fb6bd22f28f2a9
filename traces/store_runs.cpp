// The run registry: begin, finish, mark, collect dead runs, remove.
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cmath>
#include <ctime>

#include "schedule/base/error.h"
#include "traces/process_identity.h"
#include "traces/store_impl.h"

namespace steptwin {
namespace {

std::string new_uid() {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits))
    throw EnvironmentError(EnvironmentError::Kind::Device, "the system gives no random numbers");
  return fmt::format("{:016x}", bits);
}

std::int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_text(std::int64_t at_unix_ns) {
  const std::time_t seconds = at_unix_ns / 1'000'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::int64_t scenario_id(Database& database, const RunInfo& info) {
  Statement insert(database, "INSERT INTO scenario(sha256, name, path, json) VALUES(?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING");
  insert.bind(1, info.scenario_sha256).bind(2, info.scenario_name).bind(3, info.scenario_path).bind(4, info.scenario_json).run();
  Statement find(database, "SELECT id FROM scenario WHERE sha256 = ?1 AND name = ?2 AND path = ?3");
  find.bind(1, info.scenario_sha256).bind(2, info.scenario_name).bind(3, info.scenario_path);
  if (!find.step()) database.damaged("an index");  // the row is there: it was just put in
  return find.integer(0);
}

Statement& bind_text_or_null(Statement& statement, int index, std::string_view text) {
  return text.empty() ? statement.bind_null(index) : statement.bind(index, text);
}

void insert_run(Database& database, const RunInfo& info, std::string_view uid, std::int64_t scenario) {
  Statement run(database,
                "INSERT INTO run(uid, scenario_id, kind, status, backend, schedule_order, sim_of_uid, label, seed, steps, guard_value, "
                "overrides, argv, machine, cost_model, started_utc, started_unix_ns, tool_version, git_sha, git_dirty, host, pid, process) "
                "VALUES(?1, ?2, ?3, 'running', ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)");
  const std::int64_t now = unix_ns();
  const std::string utc = utc_text(now), host = host_name(), process = process_identity(getpid());
  run.bind(1, uid).bind(2, scenario).bind(3, info.kind).bind(4, info.backend).bind(5, info.order);
  bind_text_or_null(run, 6, info.sim_of_uid);
  bind_text_or_null(run, 7, info.label);
  run.bind(8, info.seed).bind(9, info.steps).bind(10, std::int64_t{info.guard_value}).bind(11, info.overrides_json);
  run.bind(12, info.argv_json).bind(13, info.machine_json).bind(14, info.cost_model).bind(15, utc).bind(16, now);
  run.bind(17, info.tool_version).bind(18, info.git_sha).bind(19, std::int64_t{info.git_dirty});
  run.bind(20, host).bind(21, std::int64_t{getpid()}).bind(22, process).run();
}

void insert_metrics(Database& database, std::int64_t run_id, const std::vector<Metric>& metrics) {
  Statement insert(database, "INSERT INTO metric(run_id, name, rank, unit, value) VALUES(?1, ?2, ?3, ?4, ?5)");
  for (const Metric& m : metrics) {
    if (!std::isfinite(m.value)) continue;  // undefined for this run
    const std::int64_t rank = m.rank.valid() ? std::int64_t{m.rank.value} : -1;
    insert.bind(1, run_id).bind(2, m.name).bind(3, rank).bind(4, m.unit).bind(5, m.value).run();
  }
}

Statement& bind_id(Statement& statement, int index, std::uint32_t value, bool valid) {
  return valid ? statement.bind(index, std::int64_t{value}) : statement.bind_null(index);
}

// The sentence first, then its details, in order.
void insert_diagnostics(Database& database, std::int64_t run_id, const Outcome& outcome) {
  if (outcome.status == Status::Ok) return;
  Statement insert(database,
                   "INSERT INTO diag(run_id, seq, level, code, rank, op, requested_bytes, capacity_bytes, in_use_bytes, text) "
                   "VALUES(?1, (SELECT count(*) FROM diag WHERE run_id = ?1), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)");
  const std::string code = name_of(outcome.status);
  const auto add = [&](std::string_view level, std::string_view text) {
    insert.bind(1, run_id).bind(2, level).bind(3, code);
    bind_id(insert, 4, outcome.rank.value, outcome.rank.valid());
    bind_id(insert, 5, outcome.op.value, outcome.op.valid());
    const bool memory = outcome.status == Status::OutOfMemory;
    const Bytes sizes[] = {outcome.requested, outcome.capacity, outcome.in_use};
    for (int i = 0; i < 3; ++i) memory ? insert.bind(6 + i, sizes[i].value) : insert.bind_null(6 + i);
    insert.bind(9, text).run();
  };
  add("error", outcome.text);
  for (const std::string& detail : outcome.details) add("detail", detail);
}

void insert_warnings(Database& database, std::int64_t run_id, const std::vector<std::string>& warnings) {
  Statement insert(database,
                   "INSERT INTO diag(run_id, seq, level, code, text) "
                   "VALUES(?1, (SELECT count(*) FROM diag WHERE run_id = ?1), 'warning', 'warning', ?2)");
  for (const std::string& text : warnings) insert.bind(1, run_id).bind(2, text).run();
}

void finish_row(Database& database, const Store::RunKey& run, std::int64_t schedule_id, const Trace& trace) {
  Statement update(database,
                   "UPDATE run SET schedule_id = ?2, status = ?3, status_text = ?4, engine = ?5, approximate_fold = ?6, step_time_ns = ?7, "
                   "makespan_ns = ?8, largest_rank_span_ns = ?9, ops = ?10, trace_digest = ?11, finished_unix_ns = ?12 WHERE id = ?1");
  const std::string digest = trace.digest();
  update.bind(1, run.id).bind(2, schedule_id).bind(3, name_of(trace.outcome.status)).bind(4, trace.outcome.text).bind(5, trace.engine);
  update.bind(6, std::int64_t{trace.approximate_fold}).bind(7, ns(trace.step_time)).bind(8, ns(trace.makespan));
  update.bind(9, ns(trace.largest_rank_span))
      .bind(10, static_cast<std::int64_t>(trace.op_count))
      .bind(11, digest)
      .bind(12, unix_ns())
      .run();
  invariant(database.changes() == 1, "finish_run: the run was begun in this database");
}

// Statistics let SQLite choose the right loop order; looking at a few hundred rows per table is enough and takes milliseconds.
void refresh_statistics(Database& database) {
  if (!database.try_execute("PRAGMA analysis_limit = 400; ANALYZE")) return;  // someone else writes, and will do it
}

}  // namespace

Store::RunKey Store::begin_run(const RunInfo& info) {
  Database& database = impl_->database;
  RunKey key;
  key.uid = new_uid();
  Transaction transaction(database);
  insert_run(database, info, key.uid, scenario_id(database, info));
  key.id = database.last_rowid();
  transaction.commit();
  return key;
}

void Store::finish_run(const RunKey& run, const Schedule& schedule, const std::string& schedule_digest, const Trace& trace,
                       const std::vector<Metric>& metrics) {
  Database& database = impl_->database;
  Transaction transaction(database);
  const std::int64_t schedule_id = store_schedule(database, schedule, schedule_digest);
  store_trace(database, run.id, schedule, trace);
  insert_metrics(database, run.id, metrics);
  insert_diagnostics(database, run.id, trace.outcome);
  insert_warnings(database, run.id, trace.warnings);
  finish_row(database, run, schedule_id, trace);
  transaction.commit();
  refresh_statistics(database);
}

void Store::mark(const RunKey& run, Status status, const std::string& text) {
  Database& database = impl_->database;
  Transaction transaction(database);
  Statement update(database, "UPDATE run SET status = ?2, status_text = ?3, finished_unix_ns = ?4 WHERE id = ?1");
  update.bind(1, run.id).bind(2, name_of(status)).bind(3, text).bind(4, unix_ns()).run();
  invariant(database.changes() == 1, "mark: the run was begun in this database");
  Outcome outcome;
  outcome.status = status;
  outcome.text = text;
  insert_diagnostics(database, run.id, outcome);
  transaction.commit();
}

int Store::gc() {
  Database& database = impl_->database;
  Transaction transaction(database);
  std::vector<std::int64_t> dead;
  Statement running(database, "SELECT id, pid, process FROM run WHERE status = 'running' AND host = ?1");
  const std::string host = host_name();
  running.bind(1, host);
  while (running.step()) {
    const auto pid = static_cast<pid_t>(running.integer(1));
    if (liveness_of(pid, std::string(running.text(2))) == Liveness::Dead) dead.push_back(running.integer(0));
  }
  Statement update(database, "UPDATE run SET status = 'interrupted', status_text = 'its process died before it was done' WHERE id = ?1");
  for (const std::int64_t id : dead) update.bind(1, id).run();
  transaction.commit();
  return static_cast<int>(dead.size());
}

void Store::remove_run(std::int64_t id) {
  Database& database = impl_->database;
  Transaction transaction(database);
  // The bulk tables carry no foreign keys; the rest follows the run by ON DELETE CASCADE, which this connection has switched on.
  for (const char* sql :
       {"DELETE FROM span WHERE run_id = ?1", "DELETE FROM memory_sample WHERE run_id = ?1", "DELETE FROM run WHERE id = ?1"})
    Statement(database, sql).bind(1, id).run();
  database.execute("DELETE FROM schedule WHERE id NOT IN (SELECT schedule_id FROM run WHERE schedule_id IS NOT NULL)");
  database.execute("DELETE FROM op WHERE schedule_id NOT IN (SELECT id FROM schedule)");
  database.execute("DELETE FROM scenario WHERE id NOT IN (SELECT scenario_id FROM run)");
  transaction.commit();
}

}  // namespace steptwin
