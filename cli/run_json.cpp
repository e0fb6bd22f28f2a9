#include "cli/run_json.h"

#include <fmt/core.h>
#include <unistd.h>

#include "cli/run_report.h"
#include "steptwin_version.h"

namespace steptwin {

namespace {

using Json = nlohmann::ordered_json;

Json optional_number(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::optional<double> per_rank(const RunSummary& summary) {
  if (!summary.tokens_per_second || summary.ranks.empty()) return std::nullopt;
  return *summary.tokens_per_second / static_cast<double>(summary.ranks.size());
}

Json optional_id(OpId op) { return op.valid() ? Json(op.value) : Json(); }

Json peak_bytes(const RunSummary& summary, Curve curve) {
  const RunPeak* peak = summary.peak(curve);
  return peak == nullptr ? Json() : Json(peak->bytes.value);
}

Json peaks_json(const RunSummary& summary) {
  Json list = Json::array();
  for (const RunPeak& peak : summary.peaks) {
    Json categories = Json::object();
    for (const auto& [name, bytes] : peak.categories) categories[name] = bytes.value;
    list.push_back({{"curve", name_of(peak.curve)},
                    {"rank", peak.rank.value},
                    {"bytes", peak.bytes.value},
                    {"at_ns", ns(peak.at)},
                    {"op", optional_id(peak.op)},
                    {"op_name", peak.op_name},
                    {"categories_bytes", categories}});
  }
  return list;
}

Json rank_json(const RankRow& row) {
  const auto peak = [&](Curve curve) { return row.device_peak[static_cast<std::size_t>(curve)].value; };
  return {{"rank", row.rank.value},
          {"stand_in", row.stand_in.value},
          {"program", row.program},
          {"stage", row.stage < 0 ? Json() : Json(row.stage)},
          {"compute_ns", ns(row.compute)},
          {"exposed_communication_ns", ns(row.exposed_communication)},
          {"bubble_ns", ns(row.bubble)},
          {"other_ns", ns(row.other)},
          {"work_ns", ns(row.work)},
          {"rank_span_ns", ns(row.rank_span)},
          {"peak_allocated_bytes", peak(Curve::Allocated)},
          {"peak_active_bytes", peak(Curve::Active)},
          {"peak_reserved_bytes", peak(Curve::Reserved)},
          {"peak_live_bytes", peak(Curve::Live)}};
}

Json outcome_json(const Outcome& outcome) {
  Json json{{"status", name_of(outcome.status)}, {"text", outcome.text}, {"details", outcome.details}};
  if (outcome.status != Status::OutOfMemory) return json;
  json["rank"] = outcome.rank.value;
  json["op"] = optional_id(outcome.op);
  json["requested_bytes"] = outcome.requested.value;
  json["in_use_bytes"] = outcome.in_use.value;
  json["capacity_bytes"] = outcome.capacity.value;
  return json;
}

// What identifies the run for good: equal inputs give equal values.
Json identity_json(const SimulationRun& run) {
  const Subject& subject = run.subject;
  Json mesh = Json::object();
  for (const Axis& axis : subject.schedule.mesh.axes) mesh[axis.name] = axis.size;
  return {{"kind", "sim"},
          {"scenario", subject.name},
          {"scenario_sha256", subject.scenario ? subject.scenario->sha256 : subject.text_sha256},
          {"order", subject.order},
          {"mesh", mesh},
          {"ranks", subject.schedule.mesh.size()},
          {"micro_batches", subject.scenario ? Json(subject.scenario->micro_batches) : Json()},
          {"steps", run.options.steps},
          {"seed", run.seed},
          {"machine", subject.machine ? Json(subject.machine->name) : Json()},
          {"capacity_bytes", subject.machine ? Json(subject.machine->device.memory.value) : Json()},
          {"cost_model", run.cost_model},
          {"approximate_fold", run.trace.approximate_fold},
          {"simulated_ranks", run.trace.simulated.size()},
          {"tool_version", kVersion},
          {"git_sha", kGitSha},
          {"git_dirty", kGitDirty}};
}

Json volatile_json(const SimulationRun& run) {
  std::string host(256, '\0');
  if (::gethostname(host.data(), host.size() - 1) != 0) host.clear();
  Json json{{"id", run.key ? Json(run.key->id) : Json()}, {"uid", run.key ? Json(run.key->uid) : Json()}};
  json["database"] = run.database.empty() ? Json() : Json(run.database);
  json["started_utc"] = run.started_utc;
  json["wall_seconds"] = run.wall_seconds;
  json["host"] = host.c_str();
  json["build_type"] = kBuildType;
  return json;
}

}  // namespace

Json summary_json(const RunSummary& summary) {
  return {{"status", summary.status},
          {"step_time_ns", ns(summary.step_time)},
          {"makespan_ns", ns(summary.makespan)},
          {"largest_rank_span_ns", ns(summary.largest_rank_span)},
          {"bubble_fraction", optional_number(summary.bubble_fraction)},
          {"bubble_rate_makespan", optional_number(summary.bubble_rate_makespan)},
          {"bubble_rate_span", optional_number(summary.bubble_rate_span)},
          {"bubble_theory", optional_number(summary.bubble_theory)},
          {"mfu", optional_number(summary.mfu)},
          {"tokens_per_second", optional_number(summary.tokens_per_second)},  // of all ranks together
          {"tokens_per_second_per_rank", optional_number(per_rank(summary))},
          {"peak_allocated_bytes", peak_bytes(summary, Curve::Allocated)},
          {"peak_active_bytes", peak_bytes(summary, Curve::Active)},
          {"peak_reserved_bytes", peak_bytes(summary, Curve::Reserved)},
          {"peak_live_bytes", peak_bytes(summary, Curve::Live)},
          {"ops", summary.ops},
          {"engine", summary.engine},
          {"schedule_digest", summary.schedule_digest},
          {"trace_digest", summary.trace_digest}};
}

std::string run_json(const SimulationRun& run, JsonLayout layout) {
  Json json{{"schema", "steptwin.run/1"}, {"run", identity_json(run)}, {"summary", summary_json(run.summary)}};
  json["outcome"] = outcome_json(run.trace.outcome);
  json["durations"] = Json::object();  // simulated ops by where their duration comes from
  for (const Provenance provenance : {Provenance::Given, Provenance::Analytic, Provenance::Interpolated, Provenance::Measured})
    json["durations"][name_of(provenance)] = run.trace.provenance[static_cast<std::size_t>(provenance)];
  json["warnings"] = run.trace.warnings;
  json["peaks"] = peaks_json(run.summary);
  Json ranks = Json::array();
  for (const RankRow& row : run.summary.ranks) ranks.push_back(rank_json(row));
  json["ranks"] = std::move(ranks);
  json["volatile"] = volatile_json(run);
  return json.dump(layout == JsonLayout::Pretty ? 2 : -1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace steptwin
