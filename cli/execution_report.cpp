#include "cli/execution_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "schedule/base/median.h"

namespace steptwin {

namespace {

using Json = nlohmann::ordered_json;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::int64_t peak_bytes(const RunSummary& summary) {
  const RunPeak* const peak = summary.peak(Curve::Allocated);
  return peak == nullptr ? 0 : peak->bytes.value;
}

Json check_json(const GradientCheck& check) {
  return {{"holds", check.holds},
          {"tensors", check.tensors},
          {"worst", check.worst},
          {"worst_use_of_allowance", number(check.worst_use)},
          {"loss_difference", number(check.loss_difference)}};
}

std::string loss_lines(const std::vector<double>& losses) {
  constexpr std::size_t kShown = 12;
  std::string text;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (losses.size() > kShown && i >= kShown / 2 && i + kShown / 2 < losses.size()) {
      if (i == kShown / 2) text += "    ...\n";
      continue;
    }
    text += fmt::format("    step {:<4} loss {:.6f}\n", i + 1, std::isnan(losses[i]) ? std::fabs(losses[i]) : losses[i]);  // no "-nan"
  }
  return text;
}

constexpr std::size_t kFigures = 4;  // of an inspected micro-batch: mean, deviation, least, largest

// The figures of one layer's input over its micro-batches: means of the first two, the extremes.
std::array<double, kFigures> over_micro_batches(const std::vector<float>& all) {
  std::array<double, kFigures> sum = {0, 0, all[2], all[3]};
  const double groups = static_cast<double>(all.size() / kFigures);
  for (std::size_t i = 0; i + kFigures <= all.size(); i += kFigures) {
    sum[0] += static_cast<double>(all[i]) / groups, sum[1] += static_cast<double>(all[i + 1]) / groups;
    sum[2] = std::min(sum[2], static_cast<double>(all[i + 2])), sum[3] = std::max(sum[3], static_cast<double>(all[i + 3]));
  }
  return sum;
}

std::string hidden_lines(const NamedValues& hidden) {
  constexpr std::size_t kMost = 16;
  std::string text;
  std::size_t shown = 0;
  for (std::size_t layer = 0; layer < hidden.size() && shown < kMost; ++layer) {
    const auto found = hidden.find(fmt::format("layers.{}.input", layer));
    if (found == hidden.end() || found->second.size() < kFigures) continue;
    const auto [mean, deviation, least, largest] = over_micro_batches(found->second);
    text += fmt::format("  {:<14} mean {:.3g}, deviation {:.3g}, {:.3g} to {:.3g}\n", fmt::format("input of L{}", layer), mean, deviation, least,
                        largest);
    ++shown;
  }
  if (hidden.size() > shown) text += fmt::format("  {} more layers: --format json has all\n", hidden.size() - shown);
  return text;
}

}  // namespace

std::vector<Duration> measured_steps(const Trace& trace, std::uint32_t steps) {
  std::vector<SimTime> ends(steps, at_ns(INT64_MIN));
  SimTime start = at_ns(INT64_MAX);
  for (const Span& span : trace.spans) {
    if (span.step >= steps) continue;
    ends[span.step] = std::max(ends[span.step], span.end);
    start = std::min(start, span.start);
  }
  std::vector<Duration> times;
  for (const SimTime end : ends) {
    if (end < start) break;
    times.push_back(end - start);
    start = end;
  }
  return times;
}

std::int64_t clock_uncertainty(const std::vector<ProcessNote>& processes) {
  std::int64_t largest = 0;
  for (const ProcessNote& process : processes) largest = std::max(largest, process.clock_uncertainty);
  return largest;
}

std::string execution_json(const ExecutionRun& run, JsonLayout layout) {
  Json json;
  json["schema"] = "steptwin.execution/1";
  json["scenario"] = run.name;
  json["backend"] = run.backend;
  json["mode"] = run.mode;
  json["status"] = run.summary.status;
  json["run"] = run.key ? Json{{"id", run.key->id}, {"uid", run.key->uid}} : Json(nullptr);
  json["prediction"] = run.prediction.key ? Json{{"id", run.prediction.key->id}, {"uid", run.prediction.key->uid}} : Json(nullptr);
  json["losses"] = Json::array();
  for (const double loss : run.result.losses) json["losses"].push_back(number(loss));
  json["step_times_ns"] = Json::array();
  for (const Duration time : run.step_times) json["step_times_ns"].push_back(ns(time));
  json["summary"] = {{"warm_up", run.warm_up},
                     {"steps", run.steps},
                     {"schedule_digest", run.summary.schedule_digest},
                     {"step_time_ns", ns(median(run.step_times))},
                     {"predicted_step_time_ns", ns(run.prediction.summary.step_time)},
                     {"peak_allocated_bytes", peak_bytes(run.summary)},
                     {"predicted_peak_allocated_bytes", peak_bytes(run.prediction.summary)},
                     {"workspace_peak_bytes", run.result.workspace_peak}};
  json["facts"] = Json::object();
  for (const RunFact& fact : run.result.facts) json["facts"][fact.name] = fact.value;
  for (const auto& [name, figures] : run.result.hidden) {
    if (figures.size() < kFigures) continue;
    const auto [mean, deviation, least, largest] = over_micro_batches(figures);
    json["hidden"][name] = {{"mean", number(mean)}, {"deviation", number(deviation)}, {"least", number(least)}, {"largest", number(largest)}};
  }
  json["check"] = run.check ? check_json(*run.check) : Json(nullptr);
  json["environment"] = Json::parse(run.result.environment_json, nullptr, false);
  for (const ProcessNote& process : run.result.processes)
    json["environment"]["processes"].push_back({{"rank", process.rank},
                                                {"host", process.host},
                                                {"clock_offset_ns", process.clock_offset},
                                                {"clock_uncertainty_ns", process.clock_uncertainty}});
  return json.dump(layout == JsonLayout::Pretty ? 2 : -1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string execution_card(const ExecutionRun& run, const Session& session) {
  const auto time = [&](Duration d) { return human_time(d, session.micro()); };
  const char* const where = run.result.processes.empty() ? "" : " in as many processes";
  std::string text = fmt::format("{}   executed on {} ({}), {} ranks{}, {} step{}\n", run.name, run.backend, run.mode,
                                 run.summary.ranks.size(), where, run.steps, run.steps == 1 ? "" : "s");
  text += loss_lines(run.result.losses);
  if (!run.step_times.empty()) {
    const auto [least, most] = std::minmax_element(run.step_times.begin(), run.step_times.end());
    const RunSummary& predicted = run.prediction.summary;
    text += fmt::format(
        "  step time      {} measured (median; {} to {}), {}\n", time(median(run.step_times)), time(*least), time(*most),
        predicted.makespan > Duration(0) ? time(predicted.step_time) + " predicted" : "no time predicted without --machine NAME");
  }
  text += fmt::format("  peak memory    {} measured, {} predicted (allocated, largest rank)\n", human_bytes(Bytes(peak_bytes(run.summary))),
                      human_bytes(Bytes(peak_bytes(run.prediction.summary))));
  for (const RunFact& fact : run.result.facts) {
    const std::string value = fact.unit == "B"    ? human_bytes(Bytes(static_cast<std::int64_t>(fact.value)))
                              : fact.unit == "ns" ? time(Duration(static_cast<std::int64_t>(fact.value)))
                                                  : fmt::format("{}", fact.value);
    text += fmt::format("  {:<14} {}\n", fact.label, value);
  }
  text += hidden_lines(run.result.hidden);
  if (run.check)
    text += fmt::format("  check          {} ({} gradients; loss differs by {:.1e}; largest share of the allowance {:.3g}: {})\n",
                        run.check->holds ? "equal to the plain model" : "DIFFERS from the plain model", run.check->tensors,
                        run.check->loss_difference, run.check->worst_use, run.check->worst);
  return text;
}

}  // namespace steptwin
