#include <nlohmann/json.hpp>

#include "schedule/machine/measured_profile.h"

namespace steptwin {
namespace {

using Json = nlohmann::ordered_json;

double us(Duration duration) { return static_cast<double>(ns(duration)) / 1e3; }

void add_timing(Json& row, const Timing& t) {
  row["time_us"] = us(t.time), row["median_us"] = us(t.median), row["least_us"] = us(t.least);
  row["p10_us"] = us(t.p10), row["p90_us"] = us(t.p90), row["deviation_us"] = us(t.deviation), row["samples"] = t.samples;
  row["rounds_us"] = Json::array();
  for (const Duration round : t.rounds) row["rounds_us"].push_back(us(round));
}

Json row_json(const MeasuredCompute& r) {
  return {{"segment", r.segment}, {"phase", r.phase},       {"engine", r.engine},
          {"kernels", r.kernels}, {"flops", r.flops.value}, {"bytes", r.bytes.value}};
}
Json row_json(const MeasuredTransfer& r) {
  Json row = {{"kind", r.kind}, {"members", r.members}, {"nodes", r.nodes}, {"members_per_node", r.members_per_node}};
  if (r.dtype) row["dtype"] = name_of(*r.dtype);
  row["bytes"] = r.bytes.value;
  return row;
}
Json row_json(const MeasuredCopy& r) {
  Json row = {{"from", r.from}, {"to", r.to}};
  if (r.cast) row["cast_from"] = name_of(r.cast->first), row["cast_to"] = name_of(r.cast->second);
  row["bytes"] = r.bytes.value;
  return row;
}
Json row_json(const MeasuredIssue& r) { return {{"kind", r.kind}}; }

template <class Row>
Json rows_json(const std::vector<Row>& rows) {
  Json list = Json::array();
  for (const Row& row : rows) {
    list.push_back(row_json(row));
    add_timing(list.back(), row.timing);
  }
  return list;
}

}  // namespace

std::string measured_to_json(const MeasuredTables& t) {
  Json out = {{"backend", t.backend}, {"mode", t.mode}, {"date", t.date}, {"host", t.host}, {"tool", t.tool}, {"command", t.command}};
  out["environment"] = Json::object();
  for (const auto& [name, value] : t.environment) out["environment"][name] = value;
  out["sources"] = Json::array();
  for (const MeasuredSource& source : t.sources) out["sources"].push_back({{"scenario", source.scenario}, {"sha256", source.sha256}});
  out["rounds"] = t.rounds, out["steps"] = t.steps, out["warm_up"] = t.warm_up, out["seed"] = t.seed, out["clock"] = t.clock;
  if (t.processor_share) out["processor_share"] = *t.processor_share;
  out["facts"] = Json::object();
  for (const auto& [name, value] : t.facts) out["facts"][name] = value;
  out["compute"] = rows_json(t.compute);
  out["transfers"] = rows_json(t.transfers);
  out["copies"] = rows_json(t.copies);
  out["issue"] = rows_json(t.issue);
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace steptwin
