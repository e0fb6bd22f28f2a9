// steptwin compare: a prediction beside a measured run.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "analysis/compare.h"
#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/errors.h"

namespace steptwin {

namespace {

using Json = nlohmann::ordered_json;

double percent_bound(const Options& options) {
  const std::string text = options.text("max-error");
  char* end = nullptr;
  const double bound = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(bound >= 0) || !std::isfinite(bound))
    throw usage_error("--max-error " + text + ": must be a number of percent, 0 or more");
  return bound;
}

std::string signed_percent(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }

Json group_json(const ComparedGroup& group) {
  return {{"name", group.name},
          {"ops", group.ops},
          {"predicted_ns", group.predicted_ns},
          {"measured_ns", group.measured_ns},
          {"signed_error", group.signed_error()},
          {"mean_absolute_error", group.mean_absolute_error},
          {"median_error", group.median_error}};
}

std::string comparison_json(const Comparison& c, Format format) {
  Json json;
  json["schema"] = "steptwin.comparison/1";
  json["sim_run"] = c.sim_run, json["exec_run"] = c.exec_run;
  json["summary"] = {{"matched_fraction", c.matched_fraction()},
                     {"unmatched", c.unmatched},
                     {"step_time_error", c.step_time_error()},
                     {"predicted_step_time_ns", c.predicted_step_ns},
                     {"measured_step_time_ns", c.measured_step_ns},
                     {"measured_step_spread", c.step_spread},
                     {"op_error_median", c.op_error_median},
                     {"op_error_mean_absolute", c.op_error_mean},
                     {"op_error_signed_mean", c.op_error_signed_mean},
                     {"peak_memory_error", c.peak_memory_error}};
  for (const auto& [key, groups] : {std::pair{"kinds", &c.kinds}, std::pair{"ranks", &c.ranks}, std::pair{"stages", &c.stages}}) {
    json[key] = Json::array();
    for (const ComparedGroup& group : *groups) json[key].push_back(group_json(group));
  }
  json["apart"] = group_json(c.apart);
  json["peaks"] = Json::array();
  for (const ComparedPeak& peak : c.peaks)
    json["peaks"].push_back({{"rank", peak.rank}, {"curve", peak.curve}, {"predicted_bytes", peak.predicted}, {"measured_bytes", peak.measured},
                             {"predicted_at", peak.predicted_at}, {"measured_at", peak.measured_at}});
  json["beside"] = Json::object();
  for (const auto& [name, bytes] : c.beside) json["beside"][name] = bytes;
  json["worst"] = Json::array();
  for (const ComparedOp& op : c.worst)
    json["worst"].push_back({{"rank", op.rank}, {"op", op.op}, {"kind", op.kind}, {"name", op.name}, {"predicted_ns", op.predicted_ns},
                             {"measured_ns", op.measured_ns}});
  return json.dump(format == Format::Json ? 2 : -1) + "\n";
}

std::string group_line(const ComparedGroup& group, Micro micro) {
  const auto time = [&](double value) { return human_time(Duration(std::llround(value)), micro); };
  return fmt::format("  {} {:>7} {} {} {:>10} {:>10}\n", pad_right(group.name, 18), group.ops, pad_left(time(group.predicted_ns), 11),
                     pad_left(time(group.measured_ns), 11), signed_percent(group.signed_error()), human_percent(group.median_error));
}

std::string instant_of(const ComparedPeak& peak) {
  const auto named = [](const std::string& op) { return op.empty() ? std::string("the start") : op; };
  if (peak.predicted_at == peak.measured_at) return "at " + named(peak.measured_at);
  return fmt::format("at {} predicted, {} measured", named(peak.predicted_at), named(peak.measured_at));
}

std::string memory_lines(const Comparison& c) {
  std::string text;
  for (const char* curve : {"allocated", "reserved"}) {
    if (std::any_of(c.peaks.begin(), c.peaks.end(), [&](const ComparedPeak& p) { return p.curve == curve; }))
      text += fmt::format("  peak {}\n", curve);
    for (const ComparedPeak& peak : c.peaks)
      if (peak.curve == curve)
        text += fmt::format("  {} {:>7} {} {} {:>10}   {}\n", pad_right(fmt::format("rank {:4}", peak.rank), 18), "",
                            pad_left(human_bytes(Bytes(peak.predicted)), 11), pad_left(human_bytes(Bytes(peak.measured)), 11),
                            signed_percent(peak.error()), instant_of(peak));
  }
  if (!c.beside.empty()) text += "  measured beside them\n";
  for (const auto& [name, bytes] : c.beside) text += fmt::format("  {} {:>20}\n", pad_right(name, 29), human_bytes(Bytes(bytes)));
  return text;
}

std::string comparison_card(const Comparison& c, Micro micro) {
  const auto time = [&](double value) { return human_time(Duration(std::llround(value)), micro); };
  std::string text =
      fmt::format("prediction {} against execution {}: {} of {} ops matched\n", c.sim_run, c.exec_run, c.matched, c.matched + c.unmatched);
  text += fmt::format("  step time    {} predicted, {} measured: {} (measured steps spread over {})\n", time(c.predicted_step_ns),
                      time(c.measured_step_ns), signed_percent(c.step_time_error()), human_percent(c.step_spread));
  text += fmt::format("  op error     median {}, mean absolute {}, mean signed {}\n", human_percent(c.op_error_median),
                      human_percent(c.op_error_mean), signed_percent(c.op_error_signed_mean));
  text += fmt::format("  peak memory  {} (allocated, worst rank)\n\n",
                      c.peak_memory_error == 0 ? std::string("equal to the byte") : signed_percent(c.peak_memory_error));
  text +=
      fmt::format("  {} {:>7} {:>11} {:>11} {:>10} {:>10}\n", pad_right("by kind", 18), "ops", "predicted", "measured", "error", "median");
  for (const ComparedGroup& group : c.kinds) text += group_line(group, micro);
  ComparedGroup apart = c.apart;
  apart.name = "short, copies";
  if (apart.ops > 0) text += group_line(apart, micro);
  text += "  by rank\n";
  for (const ComparedGroup& group : c.ranks) text += group_line(group, micro);
  if (!c.stages.empty()) text += "  by stage\n";
  for (const ComparedGroup& group : c.stages) text += group_line(group, micro);
  text += memory_lines(c);
  if (!c.worst.empty()) text += "  largest differences\n";
  for (const ComparedOp& op : c.worst)
    text += fmt::format("  rank {} op {} {} {}: {} predicted, {} measured\n", op.rank, op.op, op.kind, op.name, time(op.predicted_ns),
                        time(op.measured_ns));
  return text;
}

Exit judge_errors(const Comparison& c, double bound, const Session& session) {
  Exit result = Exit::Ok;
  for (const auto& [name, error] : {std::pair{"step time", c.step_time_error()}, std::pair{"the median op", c.op_error_median},
                                    std::pair{"peak memory", c.peak_memory_error}}) {
    if (std::fabs(error) * 100 <= bound) continue;
    session.messages.block(fmt::format("error: {} is off by {}, more than {} %", name, signed_percent(error), four_digits(bound)));
    result = Exit::CheckFailed;
  }
  return result;
}

}  // namespace

Exit run_compare(const Options& options, Session& session) {
  const double bound = options.given("max-error") ? percent_bound(options) : -1;
  const Store store = open_for_reading(options, session);
  std::vector<std::int64_t> runs;
  for (const std::string& reference : options.positionals()) runs.push_back(store.resolve(reference));
  const Comparison comparison = compare_runs(store, runs);
  const Format format = format_of(options);
  session.out.write(format == Format::Json || format == Format::Jsonl ? comparison_json(comparison, format)
                                                                       : comparison_card(comparison, session.micro()));
  session.out.flush();
  if (comparison.unmatched > 0) {
    session.messages.block(fmt::format("error: {} ops of one run have no counterpart in the other", comparison.unmatched));
    return Exit::CheckFailed;
  }
  return bound >= 0 ? judge_errors(comparison, bound, session) : Exit::Ok;
}

}  // namespace steptwin
