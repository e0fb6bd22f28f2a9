// steptwin query: read-only SQL, the user's own or a query that ships with steptwin.
#include <atomic>
#include <chrono>
#include <utility>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/errors.h"
#include "cli/row_printer.h"
#include "schedule/json/json_reader.h"

namespace steptwin {

namespace {

constexpr const char* kSchema = "steptwin.query/1";
constexpr std::chrono::seconds kTimeLimit{60};  // a forgotten join condition ends here

CannedQuery canned(const std::string& name) {
  std::vector<std::string> known;
  for (CannedQuery& query : canned_queries()) {
    if (query.name == name) return std::move(query);
    known.push_back(query.name);
  }
  const std::string near = nearest_name(name, known);
  throw usage_error("no query is called " + name, near.empty() ? "steptwin query --list shows them" : "did you mean " + near + "?");
}

Table query_list() {
  Table table{{"name", "question"}, {}};
  for (const CannedQuery& query : canned_queries()) table.rows.push_back({text_cell(query.name), text_cell(query.question)});
  return table;
}

// csv and jsonl are printed row by row; the others need the whole result first.
void print_query(Store& store, const std::string& sql, const std::vector<std::string>& parameters, Format format, Output& out) {
  if (format == Format::Csv || format == Format::Jsonl) {
    RowPrinter printer(out, format == Format::Csv ? RowFormat::Csv : RowFormat::Jsonl);
    std::atomic<bool> reader_left{false};
    store.set_query_limits(kTimeLimit, &reader_left);
    try {
      store.for_each(sql, parameters, [&](const Row& row) {
        printer.print(row);
        reader_left = out.closed();
      });
    } catch (const InputError&) {
      if (!reader_left) throw;  // else: stopped because nobody reads on
      return;
    }
    store.set_query_limits(kTimeLimit);
    if (printer.any()) return;
  }
  print_table(out, store.query(sql, parameters), format, kSchema);
}

void print_canned(Store store, const Options& options, Output& out) {
  const CannedQuery query = canned(options.text("name"));
  const auto& words = options.positionals();
  if (words.size() > 1) throw usage_error("unexpected argument " + words[1], "usage: steptwin query --name Q [RUN]");
  const std::int64_t run = store.resolve(words.empty() ? "@last" : words[0]);
  print_query(store, query.sql, {std::to_string(run)}, format_of(options), out);
}

std::string sql_of(const Options& options) {
  const auto& words = options.positionals();
  if (options.given("file")) {
    if (!words.empty()) throw usage_error("both --file and SQL are given");
    return read_text_file(options.text("file"));
  }
  if (words.empty()) throw usage_error("missing SQL", "usage: steptwin query 'select * from runs'  |  --name Q [RUN]  |  --list");
  if (words.size() > 1) throw usage_error("unexpected argument " + words[1], "put the SQL in quotes");
  return words[0];
}

}  // namespace

Exit run_query(const Options& options, Session& session) {
  const Format format = format_of(options);
  if (options.flag("list")) {
    print_table(session.out, query_list(), format, kSchema);
  } else if (options.given("show")) {
    session.out.write(canned(options.text("show")).sql);
  } else if (options.given("name")) {
    canned(options.text("name"));  // a wrong name is reported before the database is opened
    try {
      print_canned(open_for_reading(options, session), options, session.out);
    } catch (const InputError& error) {
      rethrow_own_sql_error(error, database_of(options));
    }
  } else {
    const std::string sql = sql_of(options);
    Store store = open_for_reading(options, session);
    print_query(store, sql, {}, format, session.out);
  }
  return Exit::Ok;
}

}  // namespace steptwin
