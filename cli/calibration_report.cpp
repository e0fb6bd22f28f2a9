#include "cli/calibration_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace steptwin {

namespace {

using Json = nlohmann::ordered_json;

// Rows of one kind: their number, samples, times and spreads. Spread of a row: (p90 - p10) / median.
struct RowSummary {
  const char* name = "";
  std::size_t rows = 0;
  std::int64_t samples = 0;
  Duration least{0}, most{0};
  double median_spread = 0, worst_spread = 0;
};

template <class Row>
RowSummary summary_of(const char* name, const std::vector<Row>& rows) {
  RowSummary s;
  s.name = name;
  s.rows = rows.size();
  std::vector<double> spreads;
  for (const Row& row : rows) {
    const Timing& t = row.timing;
    s.samples += t.samples;
    s.least = spreads.empty() ? t.time : std::min(s.least, t.time);
    s.most = std::max(s.most, t.time);
    spreads.push_back(ns(t.median) > 0 ? static_cast<double>(ns(t.p90 - t.p10)) / static_cast<double>(ns(t.median)) : 0);
  }
  if (spreads.empty()) return s;
  std::sort(spreads.begin(), spreads.end());
  s.median_spread = spreads[spreads.size() / 2];
  s.worst_spread = spreads.back();
  return s;
}

std::vector<RowSummary> summaries(const MeasuredTables& t) {
  return {summary_of("compute", t.compute), summary_of("transfers", t.transfers), summary_of("copies", t.copies),
          summary_of("issue", t.issue)};
}

std::string table_line(const RowSummary& s, Micro micro) {
  if (s.rows == 0) return {};
  return fmt::format("  {} {:>5} {:>8} {} {} {:>9} {:>9}\n", pad_right(s.name, 10), s.rows, s.samples,
                     pad_left(human_time(s.least, micro), 10), pad_left(human_time(s.most, micro), 10), human_percent(s.median_spread),
                     human_percent(s.worst_spread));
}

}  // namespace

std::string calibration_card(const CalibrationReport& report, Micro micro) {
  const MeasuredTables& t = *report.machine.measured;
  std::string text =
      fmt::format("calibrated {} ({}): {} round{} of {} + {} steps in {}\n", t.backend, t.mode, t.rounds, t.rounds == 1 ? "" : "s",
                  t.warm_up, t.steps, human_time(Duration(static_cast<std::int64_t>(report.seconds * 1e9)), micro));
  for (const MeasuredSource& source : t.sources) text += fmt::format("  on {}\n", printable(source.scenario));
  text += fmt::format("\n  {} {:>5} {:>8} {:>10} {:>10} {:>9} {:>9}\n", pad_right("measured", 10), "rows", "samples", "shortest", "longest",
                      "spread", "worst");
  for (const RowSummary& summary : summaries(t)) text += table_line(summary, micro);
  if (report.machine.host.turnaround > Duration(0))
    text += fmt::format("  turnaround of the thread {}\n", human_time(report.machine.host.turnaround, micro));
  text += "\n";
  for (const ScenarioCoverage& c : report.coverage)
    text += fmt::format("  {}: {} of {} ops measured\n", printable(c.name), c.measured, c.ops);
  return text + fmt::format("  profile {}\n", report.path);
}

std::string calibration_json(const CalibrationReport& report, Format format) {
  const MeasuredTables& t = *report.machine.measured;
  Json json = {{"schema", "steptwin.calibration/1"},
               {"profile", report.path},
               {"backend", t.backend},
               {"mode", t.mode},
               {"rounds", t.rounds},
               {"warm_up", t.warm_up},
               {"steps", t.steps},
               {"seed", t.seed},
               {"turnaround_ns", ns(report.machine.host.turnaround)}};
  json["rows"] = Json::object();
  for (const RowSummary& s : summaries(t))
    json["rows"][s.name] = {{"rows", s.rows}, {"samples", s.samples}, {"spread_median", s.median_spread}, {"spread_worst", s.worst_spread}};
  json["coverage"] = Json::array();
  for (const ScenarioCoverage& c : report.coverage)
    json["coverage"].push_back({{"scenario", c.name}, {"ops", c.ops}, {"measured", c.measured}});
  json["sources"] = Json::array();
  for (const MeasuredSource& source : t.sources) json["sources"].push_back({{"scenario", source.scenario}, {"sha256", source.sha256}});
  json["wall_seconds"] = report.seconds;
  return json.dump(format == Format::Json ? 2 : -1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace steptwin
