#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "schedule/machine/measured_profile.h"

namespace steptwin {
namespace {

constexpr NumberRange kMicroseconds{0, 1e9, false};  // 1000 s
constexpr IntegerRange kCount{1, INT64_C(1) << 50}, kSize{0, INT64_C(1) << 60}, kMembers{1, 1 << 24};

const std::vector<std::string> kPhases{"", "F", "B", "I", "W", "R", "U"};
const std::vector<std::string> kEngines{"compute", "copy_up", "copy_down", "network", "storage", "host"};
const std::vector<std::string> kTransfers{"message", "gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all"};
const std::vector<std::string> kSpacesByName{"device", "pinned", "pageable", "storage"};
const std::vector<std::string> kTypes{"fp32", "bf16", "fp16", "int64", "int32", "uint8"};
const std::vector<std::string> kTimingKeys{"time_us", "median_us", "least_us", "p10_us", "p90_us", "deviation_us", "samples", "rounds_us"};

Duration microseconds(double value) { return Duration(std::llround(value * 1e3)); }

Duration time_of(const JsonObject& row, const char* key) { return microseconds(row.number(key, kMicroseconds).value_or(0)); }

void only(const JsonObject& row, std::vector<std::string> keys) {
  keys.insert(keys.end(), kTimingKeys.begin(), kTimingKeys.end());
  row.only(keys);
}

std::string word(const JsonObject& row, const char* key, const std::vector<std::string>& words) {
  row.require(key);
  const auto index = row.choice(key, words);
  return index ? words[*index] : std::string();
}

Bytes bytes_of(const JsonObject& row) {
  row.require("bytes");
  return Bytes(row.integer("bytes", kSize).value_or(0));
}

Timing read_timing(const JsonObject& row) {
  Timing t;
  row.require("time_us");
  t.time = time_of(row, "time_us"), t.median = time_of(row, "median_us"), t.least = time_of(row, "least_us");
  t.p10 = time_of(row, "p10_us"), t.p90 = time_of(row, "p90_us"), t.deviation = time_of(row, "deviation_us");
  t.samples = row.integer("samples", kCount).value_or(1);
  for (const double round : row.numbers("rounds_us", kMicroseconds).value_or(std::vector<double>{}))
    t.rounds.push_back(microseconds(round));
  return t;
}

std::vector<std::string> read_kernels(const JsonObject& row) {
  row.require("kernels");
  std::vector<std::string> kernels = row.strings("kernels").value_or(std::vector<std::string>{});
  for (const std::string& text : kernels)
    if (std::count(text.begin(), text.end(), ' ') != 7)
      row.problems().error("KERNEL", *row.find("kernels"), fmt::format("{} is no kernel", in_quotes(text)),
                           "kind, type, batch, m, n, k, flops and bytes, as calibrate writes them");
  return kernels;
}

MeasuredCompute read_compute(const JsonObject& row) {
  only(row, {"segment", "phase", "engine", "kernels", "flops", "bytes"});
  MeasuredCompute out;
  row.require("segment");
  out.segment = row.string("segment").value_or("");
  out.phase = word(row, "phase", kPhases);
  out.engine = word(row, "engine", kEngines);
  out.kernels = read_kernels(row);
  row.require("flops");
  out.flops = Flops(row.integer("flops", kSize).value_or(0));
  out.bytes = bytes_of(row);
  out.timing = read_timing(row);
  return out;
}

std::uint32_t members(const JsonObject& row, const char* key) {
  row.require(key);
  return static_cast<std::uint32_t>(row.integer(key, kMembers).value_or(1));
}

MeasuredTransfer read_transfer(const JsonObject& row) {
  only(row, {"kind", "members", "nodes", "members_per_node", "dtype", "bytes"});
  MeasuredTransfer out;
  out.kind = word(row, "kind", kTransfers);
  out.members = members(row, "members"), out.nodes = members(row, "nodes"), out.members_per_node = members(row, "members_per_node");
  if (const auto type = row.choice("dtype", kTypes)) out.dtype = static_cast<DType>(*type);
  out.bytes = bytes_of(row);
  out.timing = read_timing(row);
  return out;
}

MeasuredCopy read_copy(const JsonObject& row) {
  only(row, {"from", "to", "cast_from", "cast_to", "bytes"});
  MeasuredCopy out;
  out.from = word(row, "from", kSpacesByName);
  out.to = word(row, "to", kSpacesByName);
  if (row.has("cast_from") || row.has("cast_to")) {
    row.require("cast_from");
    row.require("cast_to");
    const auto from = row.choice("cast_from", kTypes), to = row.choice("cast_to", kTypes);
    if (from && to) out.cast = {static_cast<DType>(*from), static_cast<DType>(*to)};
  }
  out.bytes = bytes_of(row);
  out.timing = read_timing(row);
  return out;
}

MeasuredIssue read_issue(const JsonObject& row) {
  static const std::vector<std::string> kKinds{"compute",    "gather", "reduce_scatter", "all_reduce", "broadcast",
                                               "all_to_all", "send",   "recv",           "copy"};
  only(row, {"kind"});
  return {word(row, "kind", kKinds), read_timing(row)};
}

MeasuredSource read_source(const JsonObject& row) {
  row.only({"scenario", "sha256"});
  return {row.string("scenario").value_or(""), row.string("sha256").value_or("")};
}

bool same_key(const MeasuredCompute& a, const MeasuredCompute& b) {
  return a.segment == b.segment && a.phase == b.phase && a.engine == b.engine && a.kernels == b.kernels;
}
bool same_key(const MeasuredTransfer& a, const MeasuredTransfer& b) {
  return a.kind == b.kind && a.members == b.members && a.nodes == b.nodes && a.members_per_node == b.members_per_node &&
         a.dtype == b.dtype && a.bytes == b.bytes;
}
bool same_key(const MeasuredCopy& a, const MeasuredCopy& b) {
  return a.from == b.from && a.to == b.to && a.cast == b.cast && a.bytes == b.bytes;
}
bool same_key(const MeasuredIssue& a, const MeasuredIssue& b) { return a.kind == b.kind; }
bool same_key(const MeasuredSource&, const MeasuredSource&) { return false; }

template <class Row>
std::vector<Row> read_rows(const JsonObject& section, const char* key, Row (*read)(const JsonObject&)) {
  std::vector<Row> rows;
  const JsonNode* const list = section.find(key);
  if (list == nullptr) return rows;
  if (list->type != JsonType::Array) {
    section.problems().error("TYPE", *list, fmt::format("{} must be a list of rows", in_quotes(key)), "write [{...}, ...]");
    return rows;
  }
  for (const JsonNode& item : list->items) {
    const JsonObject object(&item, section.problems());
    if (!object.present()) continue;
    Row row = read(object);
    if (std::any_of(rows.begin(), rows.end(), [&](const Row& other) { return same_key(row, other); }))
      section.problems().error("DUPLICATE", item, fmt::format("an earlier row of {} has the same key", in_quotes(key)),
                               "remove one of the two");
    rows.push_back(std::move(row));
  }
  return rows;
}

std::map<std::string, std::string> read_environment(const JsonObject& environment) {
  std::map<std::string, std::string> out;
  if (!environment.present()) return out;
  for (const JsonNode& item : environment.node()->items)
    if (const auto text = read_string(item, environment.problems())) out[item.key] = *text;
  return out;
}

std::map<std::string, double> read_facts(const JsonObject& facts) {
  std::map<std::string, double> out;
  if (!facts.present()) return out;
  for (const JsonNode& item : facts.node()->items)
    if (const auto value = facts.number(item.key.c_str(), {-1e300, 1e300, false})) out[item.key] = *value;
  return out;
}

}  // namespace

MeasuredTables read_measured(const JsonObject& o) {
  o.only({"backend", "mode", "date", "host", "tool", "command", "environment", "sources", "rounds", "steps", "warm_up", "seed", "clock",
          "processor_share", "facts", "compute", "transfers", "copies", "issue"});
  MeasuredTables t;
  for (const auto& [key, text] :
       {std::pair{"backend", &t.backend}, {"date", &t.date}, {"host", &t.host}, {"tool", &t.tool}})
    *text = o.string(key).value_or("");
  static const std::vector<std::string> kModes{"interp", "threads", "streams"};
  t.mode = kModes[o.choice("mode", kModes).value_or(0)];
  t.command = o.strings("command").value_or(std::vector<std::string>{});
  t.environment = read_environment(o.object("environment"));
  t.rounds = o.integer("rounds", kCount).value_or(1);
  t.steps = o.integer("steps", kCount).value_or(1);
  t.warm_up = o.integer("warm_up", kSize).value_or(0);
  t.seed = o.integer("seed").value_or(1);
  t.clock = o.choice("clock", {"wall", "thread"}).value_or(0) == 1 ? "thread" : "wall";
  t.processor_share = o.number("processor_share", {0, 2, false});
  t.facts = read_facts(o.object("facts"));
  t.sources = read_rows<MeasuredSource>(o, "sources", read_source);
  t.compute = read_rows<MeasuredCompute>(o, "compute", read_compute);
  t.transfers = read_rows<MeasuredTransfer>(o, "transfers", read_transfer);
  t.copies = read_rows<MeasuredCopy>(o, "copies", read_copy);
  t.issue = read_rows<MeasuredIssue>(o, "issue", read_issue);
  return t;
}

}  // namespace steptwin
