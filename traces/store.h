// Store: the SQLite file that keeps runs. schema.sql is the schema, SCHEMA.md its description; views are the public face.
// WAL (rollback journal with one warning on network file systems), busy_timeout 30 s, BEGIN IMMEDIATE, one transaction per run's
// data; the run row itself is inserted first with status 'running' (kill -9 leaves that row, gc() marks it interrupted).
// A foreign or newer database is refused untouched (EnvironmentError, Kind::Database), as is a file that is no database.
// Not for use by several threads at once; several processes (and several Stores) may share one file.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schedule/ir/schedule.h"
#include "traces/trace.h"

namespace steptwin {

struct RunInfo {
  std::string kind = "sim";  // sim | exec | import
  std::string backend = "sim";
  std::string scenario_name, scenario_path, scenario_json, scenario_sha256;
  std::string order;  // "1f1b"; "file" for a schedule text
  std::string overrides_json = "{}";
  std::string argv_json = "[]";
  std::string machine_json = "{}";
  std::string cost_model;
  std::string sim_of_uid;  // exec: the prediction it belongs to; empty = none
  std::string label;
  std::int64_t seed = 1, steps = 1;
  std::string tool_version, git_sha;
  bool git_dirty = false;
  bool guard_value = true;  // the branch that guarded ops took (false: overflow); runs that differ are not compared
};

// A number of the summary, stored as a row of `metric`. rank none = the whole run.
struct Metric {
  std::string name;  // "step_time_ns", "bubble_fraction", "mfu", ...
  std::string unit;  // "ns", "B", "1", "1/s"
  double value = 0;
  RankId rank;
};

// Result of a query: column names and rows of optional text (none = NULL); numbers keep full precision.
struct Table {
  enum class Type : std::uint8_t { Null, Integer, Real, Text };
  struct Cell {
    Type type = Type::Null;
    std::string text;
  };
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows;
};

class Statement;  // traces/database.h, internal

// One row of a running query; valid inside the callback only.
class Row {
 public:
  explicit Row(const Statement& statement) : statement_(statement) {}
  int columns() const;
  std::string_view name(int column) const;
  Table::Type type(int column) const;
  std::int64_t integer(int column) const;   // 0 for NULL
  double real(int column) const;            // 0 for NULL
  std::string_view text(int column) const;  // empty for NULL; reals with 15 digits

 private:
  const Statement& statement_;
};

class Store {
 public:
  enum class Access : std::uint8_t { ReadWrite, ReadOnly };
  // Opens, creating when absent (ReadWrite). Throws EnvironmentError.
  Store(const std::string& path, Access access);
  ~Store();
  Store(Store&&) noexcept;

  struct RunKey {
    std::int64_t id = 0;
    std::string uid;
  };
  RunKey begin_run(const RunInfo& info);
  // Everything of the run in one transaction: schedule (once per digest), ranks, spans, memory, breakdown, metrics, final status.
  void finish_run(const RunKey& run, const Schedule& schedule, const std::string& schedule_digest, const Trace& trace,
                  const std::vector<Metric>& metrics);
  void mark(const RunKey& run, Status status, const std::string& text);  // error, interrupted
  int gc();  // marks dead 'running' rows of this host interrupted; returns how many
  void remove_run(std::int64_t id);
  std::vector<std::string> check() const;  // what integrity_check and foreign_key_check find, and rows of no run; empty = sound

  // id, uid prefix, label, @last, @last-sim, @last-exec. Throws InputError (code RUN) naming the nearest when there is none or several.
  std::int64_t resolve(const std::string& reference) const;
  // Read-only SQL with bound ?1.. parameters (text that reads as a number is bound as one); throws InputError (code SQL), also
  // when the time limit of set_query_limits has passed.
  Table query(const std::string& sql, const std::vector<std::string>& parameters = {}) const;
  // The same row by row, for results of any size.
  void for_each(const std::string& sql, const std::vector<std::string>& parameters, const std::function<void(const Row&)>& each) const;
  void set_query_limits(std::chrono::milliseconds timeout, const std::atomic<bool>* stop = nullptr);  // 0 = no limit; default 60 s
  const std::string& path() const;
  const std::vector<std::string>& warnings() const;  // e.g. network file system

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string sqlite_version();  // "3.40.1", of the library in use

// Canned queries: analysis/queries/NAME.sql, each opening with comment lines (question, columns, units) and taking ?1 = run id
// (runs_overview takes none). Implemented in analysis/canned_queries.cpp.
struct CannedQuery {
  std::string name, question, sql;
};
std::vector<CannedQuery> canned_queries();  // by name

}  // namespace steptwin
