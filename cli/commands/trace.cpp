// steptwin trace export RUN: the timeline of a stored run for other tools.
#include <fmt/core.h>
#include <unistd.h>

#include <charconv>

#include "analysis/export_perfetto.h"
#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/errors.h"
#include "cli/file_system.h"
#include "cli/row_printer.h"
#include "cli/signals.h"

namespace steptwin {

namespace {

std::uint32_t parse_rank(const std::string& list, const std::string& word) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc() || end != word.data() + word.size() || value >= (1u << 24)) {
    throw usage_error("--ranks " + list + ": expected a list of ranks", "for example --ranks 0-7,16");
  }
  return value;
}

std::vector<RankId> parse_ranks(const std::string& list) {
  std::vector<RankId> ranks;
  for (const std::string& word : split_words(list, ',')) {
    const std::size_t dash = word.find('-');
    const std::uint32_t first = parse_rank(list, word.substr(0, dash));
    const std::uint32_t last = dash == std::string::npos ? first : parse_rank(list, word.substr(dash + 1));
    if (last < first) throw usage_error("--ranks " + list + ": " + word + " runs backwards");
    for (std::uint32_t rank = first; rank <= last; ++rank) ranks.emplace_back(rank);
  }
  return ranks;
}

void write_perfetto(const Store& store, std::int64_t run, const Options& options, Output& out, const Session& session) {
  const PerfettoExport selection{parse_ranks(options.text("ranks"))};
  const PerfettoResult result = export_perfetto(
      store, run, [&](std::string_view bytes) { out.write(bytes); }, selection);
  for (const std::string& warning : result.warnings) session.messages.warning(warning);
  session.messages.note(fmt::format("{} slices, {} arrows, {} memory values of {} ranks",
                                    human_count(static_cast<std::int64_t>(result.slices)),
                                    human_count(static_cast<std::int64_t>(result.flows)),
                                    human_count(static_cast<std::int64_t>(result.counter_values)), result.ranks.size()));
}

void write_csv_spans(const Store& store, std::int64_t run, Output& out) {
  RowPrinter printer(out, RowFormat::Csv);
  store.for_each("SELECT * FROM spans WHERE run_id = ?1 ORDER BY rank, step, op", {std::to_string(run)},
                 [&](const Row& row) { printer.print(row); });
}

Exit export_run(const Options& options, Session& session) {
  const std::string format = options.text("format", "perfetto");
  if (format == "csv" && options.given("ranks"))
    throw usage_error("--ranks is for perfetto", "steptwin query 'select * from spans where ...' --format csv");
  if (!options.given("output")) throw usage_error("missing -o FILE", "-o NAME.pftrace, or -o - for standard output");
  const std::string path = options.text("output");
  Store store = open_for_reading(options, session);
  const std::int64_t run = store.resolve(options.positionals()[1]);
  const StopScope stop;
  store.set_query_limits(std::chrono::milliseconds(0), &stop.flag());
  const auto write = [&](Output& out) {
    format == "csv" ? write_csv_spans(store, run, out) : write_perfetto(store, run, options, out, session);
    out.flush();
  };
  try {
    if (path == "-") {
      write(session.out);
      return Exit::Ok;
    }
    AtomicFile file(path, options.flag("force") ? AtomicFile::Overwrite::Allow : AtomicFile::Overwrite::Refuse);
    Output out(file.descriptor(), path);
    write(out);
    file.commit();
  } catch (const InputError&) {
    if (!stop.stopped()) throw;
    return stop.exit_code();  // the queries were stopped by the signal; the unfinished file goes away with its AtomicFile
  }
  session.messages.note("wrote " + path + (format == "perfetto" ? ": drag it onto ui.perfetto.dev (nothing is uploaded)" : ""));
  return Exit::Ok;
}

}  // namespace

Exit run_trace(const Options& options, Session& session) {
  const auto& words = options.positionals();
  if (words[0] != "export") throw usage_error("unknown command trace " + words[0], "usage: steptwin trace export RUN -o FILE");
  if (words.size() < 2) throw usage_error("missing RUN", "an id, the first digits of a uid, a label, @last, @last-sim or @last-exec");
  try {
    return export_run(options, session);
  } catch (const InputError& error) {
    rethrow_own_sql_error(error, database_of(options));
  }
}

}  // namespace steptwin
