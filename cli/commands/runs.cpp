// steptwin runs: list, show, rm, check, gc.
#include <fmt/core.h>

#include <array>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/errors.h"

namespace steptwin {

namespace {

constexpr const char* kSchema = "steptwin.runs/1";
constexpr std::int64_t kMostRanks = 16;

Store open_for_writing(const Options& options, const Session& session) {
  const std::string path = database_of(options);
  { const Store probe(path, Store::Access::ReadOnly); }  // an absent database is an error here, not created
  Store store(path, Store::Access::ReadWrite);
  session.messages.note("database " + path);
  print_warnings(store, session);
  return store;
}

const std::string& run_word(const Options& options) {
  if (options.positionals().size() < 2)
    throw usage_error("missing RUN", "an id, the first digits of a uid, a label, @last, @last-sim or @last-exec");
  return options.positionals()[1];
}

Exit list(const Options& options, Session& session) {
  const Store store = open_for_reading(options, session);
  const Table table = store.query(
      "SELECT id, uid, kind, scenario, schedule_order AS \"order\", ranks, status, step_time_ns / 1e6 AS step_ms, 100.0 * bubble_fraction "
      "AS bubble_pct, "
      "peak_allocated_bytes / 1073741824.0 AS peak_gib, label, started_utc FROM runs ORDER BY id");
  print_table(session.out, table, format_of(options), kSchema);
  return Exit::Ok;
}

// A table of one row, turned on its side.
Table on_its_side(const Table& row) {
  Table table{{"field", "value"}, {}};
  for (std::size_t c = 0; c < row.columns.size() && !row.rows.empty(); ++c)
    table.rows.push_back({text_cell(row.columns[c]), row.rows[0][c]});
  return table;
}

// The ranks that were simulated: the others are equal to their stand-in. At most kMostRanks.
void print_ranks(const Store& store, const std::string& id, Session& session) {
  print_table(session.out,
              store.query("SELECT rank, program, stages, compute_ns, exposed_communication_ns, bubble_ns, other_ns, step_ns, work_ns, "
                          "rank_span_ns FROM rank_summary WHERE run_id = ?1 AND rank = stand_in ORDER BY rank LIMIT ?2",
                          {id, std::to_string(kMostRanks)}),
              Format::Table, kSchema);
  const Table count = store.query("SELECT count(*), ifnull(sum(rank = stand_in), 0) FROM rank_summary WHERE run_id = ?1", {id});
  const std::int64_t all = std::stoll(count.rows[0][0].text), simulated = std::stoll(count.rows[0][1].text);
  if (simulated > kMostRanks)
    session.out.write(
        fmt::format("{} more ranks: steptwin query 'select * from rank_summary where run_id = {}'\n", simulated - kMostRanks, id));
  if (all > simulated) session.out.write(fmt::format("{} other ranks do the same as one of these\n", all - simulated));
}

Exit show(const Options& options, Session& session) {
  const std::string word = run_word(options);
  const Store store = open_for_reading(options, session);
  const std::string id = std::to_string(store.resolve(word));
  const Table run = store.query("SELECT * FROM runs WHERE id = ?1", {id});
  const Format format = format_of(options);
  if (format != Format::Table) {
    print_table(session.out, run, format, kSchema);
    return Exit::Ok;
  }
  print_table(session.out, on_its_side(run), format, kSchema);
  session.out.write("\n");
  print_table(session.out, store.query("SELECT name, value, unit FROM metrics WHERE run_id = ?1 AND rank IS NULL ORDER BY name", {id}),
              format, kSchema);
  session.out.write("\n");
  print_ranks(store, id, session);
  return Exit::Ok;
}

Exit remove(const Options& options, Session& session) {
  const std::string word = run_word(options);
  Store store = open_for_writing(options, session);
  const std::int64_t id = store.resolve(word);
  store.remove_run(id);
  session.messages.note(fmt::format("run {} removed", id));
  return Exit::Ok;
}

Exit collect(const Options& options, Session& session) {
  Store store = open_for_writing(options, session);
  const int marked = store.gc();
  session.out.write(fmt::format("{} run{} marked interrupted\n", marked, marked == 1 ? "" : "s"));
  return Exit::Ok;
}

Exit check(const Options& options, Session& session) {
  const Store store = open_for_reading(options, session);
  const std::vector<std::string> findings = store.check();
  for (const std::string& finding : findings) session.out.write(finding + "\n");
  if (findings.empty()) session.out.write("ok\n");
  return findings.empty() ? Exit::Ok : Exit::CheckFailed;
}

struct Action {
  const char* name;
  std::size_t words;  // positionals at most, with its own name
  Exit (*run)(const Options& options, Session& session);
};

}  // namespace

Exit run_runs(const Options& options, Session& session) {
  static constexpr std::array<Action, 5> kActions{
      {{"list", 1, list}, {"show", 2, show}, {"rm", 2, remove}, {"check", 1, check}, {"gc", 1, collect}}};
  const std::string& name = options.positionals().front();
  for (const Action& action : kActions) {
    if (name != action.name) continue;
    if (options.positionals().size() > action.words) throw usage_error("unexpected argument " + options.positionals()[action.words]);
    try {
      return action.run(options, session);
    } catch (const InputError& error) {
      rethrow_own_sql_error(error, database_of(options));
    }
  }
  const std::string near = nearest_name(name, {"list", "show", "rm", "check", "gc"});
  throw usage_error("unknown command runs " + name, near.empty() ? "one of list, show, rm, check, gc" : "did you mean " + near + "?");
}

}  // namespace steptwin
