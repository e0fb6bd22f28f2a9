#include "schedule/machine/profile_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "schedule/machine/measured_profile.h"

namespace steptwin {
namespace {

constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;
constexpr double kGib = 1073741824.0;
constexpr NumberRange kPositive{0, 1e12, true};
constexpr NumberRange kNotNegative{0, 1e12, false};
constexpr double kMaxEfficiency = 1, kMaxAttentionEfficiency = 2;  // attention counts the masked half of the scores too
constexpr NumberRange kTurnaround{0, 1e6, false};                 // a second; far above any thread's
constexpr NumberRange kCapacityGib{0, 8e9, true};                  // 8e9 GiB still fits int64 bytes

Bytes gib(double value) { return Bytes(static_cast<std::int64_t>(std::llround(value * kGib))); }

Duration microseconds(double value) { return Duration(std::llround(value * 1e3)); }

BytesPerSecond required_rate(const JsonObject& o, std::string_view key) {
  o.require(key);
  return {o.number(key, kPositive).value_or(1) * kGiga};
}

// [{"at_least_gflop": 0, "efficiency": 0.1}, ...] with ascending sizes; `unit` turns the stated size into flops or bytes.
EfficiencyCurve read_curve(const JsonObject& o, std::string_view key, const std::string& size_key, double unit, double most) {
  EfficiencyCurve curve;
  const JsonNode* list = o.find(key);
  if (list == nullptr) return curve;
  if (list->type != JsonType::Array) {
    o.problems().error("TYPE", *list, fmt::format("{} must be a list of steps", in_quotes(key)),
                       fmt::format("write [{{\"{}\": 0, \"efficiency\": 0.5}}, ...]", size_key));
    return curve;
  }
  for (const JsonNode& item : list->items) {
    const JsonObject step(&item, o.problems());
    step.only({size_key, "efficiency"});
    step.require(size_key);
    step.require("efficiency");
    const double at_least = step.number(size_key, kNotNegative).value_or(0) * unit;
    if (!curve.steps.empty() && step.has(size_key) && at_least <= curve.steps.back().first)
      o.problems().error("ORDER", *step.find(size_key), "sizes of a curve must ascend", "sort the steps by " + size_key);
    curve.steps.emplace_back(at_least, step.number("efficiency", {0, most, true}).value_or(1));
  }
  return curve;
}

std::map<DType, FlopsPerSecond> read_peaks(const JsonObject& peaks) {
  peaks.only({"bf16", "fp16", "fp32"});
  std::map<DType, FlopsPerSecond> out;
  for (const DType type : {DType::Bf16, DType::Fp16, DType::Fp32}) {
    peaks.require(name_of(type));
    out[type] = {peaks.number(name_of(type), kPositive).value_or(1) * kTera};
  }
  return out;
}

Device read_device(const JsonObject& o) {
  o.only({"name", "memory_gib", "memory_bandwidth_gb_per_s", "matrix_peak_tflops", "vector_peak_tflops", "matrix_efficiency",
          "attention_efficiency", "memory_efficiency", "sources"});
  for (const char* key : {"memory_gib", "matrix_peak_tflops", "vector_peak_tflops"}) o.require(key);
  Device device;
  device.name = o.string("name").value_or("device");
  device.memory = gib(o.number("memory_gib", kCapacityGib).value_or(1));
  device.memory_bandwidth = required_rate(o, "memory_bandwidth_gb_per_s");
  device.matrix_peak = read_peaks(o.object("matrix_peak_tflops"));
  device.vector_peak = {o.number("vector_peak_tflops", kPositive).value_or(1) * kTera};
  device.matrix_efficiency = read_curve(o, "matrix_efficiency", "at_least_gflop", kGiga, kMaxEfficiency);
  device.attention_efficiency = read_curve(o, "attention_efficiency", "at_least_gflop", kGiga, kMaxAttentionEfficiency);
  device.memory_efficiency = read_curve(o, "memory_efficiency", "at_least_mb", 1e6, kMaxEfficiency);
  return device;
}

Link read_link(const JsonObject& o) {
  o.only({"bandwidth_gb_per_s", "efficiency", "latency_us", "sources"});
  Link link;
  if (!o.present()) return link;
  link.bandwidth = required_rate(o, "bandwidth_gb_per_s");
  link.efficiency = o.number("efficiency", {0, 1, true}).value_or(1);
  link.latency = microseconds(o.number("latency_us", kNotNegative).value_or(0));
  return link;
}

// Several ranks on one issuing thread take turns op by op; the simulator has no such turns yet.
int read_ranks_per_thread(const JsonObject& o) {
  const std::int64_t ranks = o.integer("ranks_per_thread", {1, 1 << 20}).value_or(1);
  if (ranks > 1)
    o.problems().error("UNSUPPORTED", *o.find("ranks_per_thread"), fmt::format("{} ranks on one issuing thread cannot be simulated yet", ranks),
                       "write 1, or leave it out");
  return static_cast<int>(ranks);
}

double read_contention(const JsonObject& o, int compute_slots) {
  const double contention = o.number("compute_contention", {0, 16, false}).value_or(0);
  if (contention > 0 && compute_slots > 0)
    o.problems().error("CONFLICT", *o.find("compute_contention"), "ops that take turns (compute_slots) do not slow each other",
                       "write \"compute_slots\": 0, or leave compute_contention out");
  return contention;
}

Host read_host(const JsonObject& o) {
  o.only({"kernel_launch_us", "transfer_launch_us", "run_ahead_micro_batches", "ranks_per_thread", "compute_slots", "slot_scope",
          "compute_contention", "turnaround_us", "pinned_memory_gib", "pageable_memory_gib",
          "memory_bandwidth_gb_per_s", "sources"});
  constexpr IntegerRange kSmall{0, 1 << 20};
  Host host;
  for (const char* key : {"pinned_memory_gib", "pageable_memory_gib"}) o.require(key);
  host.kernel_launch = microseconds(o.number("kernel_launch_us", kNotNegative).value_or(0));
  host.transfer_launch = microseconds(o.number("transfer_launch_us", kNotNegative).value_or(0));
  host.run_ahead_micro_batches = static_cast<int>(o.integer("run_ahead_micro_batches", kSmall).value_or(0));
  host.ranks_per_thread = read_ranks_per_thread(o);
  host.compute_slots = static_cast<int>(o.integer("compute_slots", kSmall).value_or(0));
  host.slot_scope = o.choice("slot_scope", {"compute", "everything"}).value_or(0) == 1 ? SlotScope::Everything : SlotScope::Compute;
  host.compute_contention = read_contention(o, host.compute_slots);
  host.turnaround = microseconds(o.number("turnaround_us", kTurnaround).value_or(0));
  host.pinned_memory = gib(o.number("pinned_memory_gib", kCapacityGib).value_or(1));
  host.pageable_memory = gib(o.number("pageable_memory_gib", kCapacityGib).value_or(1));
  if (const auto rate = o.number("memory_bandwidth_gb_per_s", kPositive)) host.memory_bandwidth = BytesPerSecond{*rate * kGiga};
  return host;
}

std::optional<Disk> read_disk(const JsonObject& o) {
  o.only({"read_gb_per_s", "write_gb_per_s", "capacity_gib", "sources"});
  if (!o.present()) return std::nullopt;
  Disk disk;
  disk.read = required_rate(o, "read_gb_per_s");
  disk.write = required_rate(o, "write_gb_per_s");
  o.require("capacity_gib");
  disk.capacity = gib(o.number("capacity_gib", kCapacityGib).value_or(1));
  return disk;
}

// "sources" stands beside the figures it is about: {"device": {"memory_gib": 80, "sources": {"memory_gib": "data sheet"}}}.
void collect_sources(const JsonNode& section, JsonProblems& problems, std::map<std::string, std::string>& out) {
  const JsonObject object(section.type == JsonType::Object ? &section : nullptr, problems);
  const JsonNode* node = object.find("sources");
  if (node == nullptr || JsonObject(node, problems).node() == nullptr) return;
  for (const JsonNode& source : node->items) {
    const std::optional<std::string> text = read_string(source, problems);
    if (section.find(source.key) == nullptr)
      problems.error_at_key("SOURCE", source, fmt::format("a source for {}, which is not stated here", in_quotes(source.key)),
                            "name a key beside \"sources\"");
    else if (text)
      out[section.pointer + "/" + escape_pointer(source.key)] = *text;
  }
}

}  // namespace

const std::vector<std::string>& machine_figure_keys() {
  static const std::vector<std::string> kKeys = {"devices_per_node", "ranks_per_device", "nodes", "device",       "intra_node", "inter_node",
                                                 "copy_up",          "copy_down", "link_sharing", "host",       "disk"};
  return kKeys;
}

Machine read_machine(const JsonNode& root, JsonProblems& problems) {
  const JsonObject o(&root, problems);
  std::vector<std::string> known = {"$schema", "format", "name", "sources", "measured"};
  known.insert(known.end(), machine_figure_keys().begin(), machine_figure_keys().end());
  o.only(known);
  Machine machine;
  if (!o.present()) return machine;
  for (const char* key : {"format", "name", "device", "intra_node", "inter_node", "copy_up", "copy_down", "host"}) o.require(key);
  o.integer("format", {1, 1});
  o.string("$schema");
  machine.name = o.string("name").value_or("");
  machine.device = read_device(o.object("device"));
  machine.devices_per_node = static_cast<int>(o.integer("devices_per_node", {1, 1 << 20}).value_or(8));
  machine.ranks_per_device = static_cast<int>(o.integer("ranks_per_device", {1, 1 << 20}).value_or(1));
  if (const auto nodes = o.integer("nodes", {1, 1 << 22})) machine.nodes = static_cast<int>(*nodes);
  machine.intra_node = read_link(o.object("intra_node"));
  machine.inter_node = read_link(o.object("inter_node"));
  machine.copy_up = read_link(o.object("copy_up"));
  machine.copy_down = read_link(o.object("copy_down"));
  machine.sharing = o.choice("link_sharing", {"none", "fair"}).value_or(0) == 1 ? LinkSharing::Fair : LinkSharing::None;
  machine.host = read_host(o.object("host"));
  machine.disk = read_disk(o.object("disk"));
  if (machine.sharing == LinkSharing::Fair && machine.host.slot_scope == SlotScope::Everything)
    problems.error("CONFLICT", *o.object("host").find("slot_scope"), "transfers that take slots share no links",
                   "write \"link_sharing\": \"none\", or \"slot_scope\": \"compute\"");
  if (o.has("measured")) machine.measured = read_measured(o.object("measured"));
  collect_sources(root, problems, machine.sources);
  for (const JsonNode& section : root.items)
    if (section.key != "measured") collect_sources(section, problems, machine.sources);
  return machine;
}

void overlay(JsonNode& base, const JsonNode& over) {
  for (const JsonNode& member : over.items) {
    JsonNode* old = base.find(member.key);
    if (old != nullptr && old->type == JsonType::Object && member.type == JsonType::Object) {
      overlay(*old, member);
      continue;
    }
    if (old == nullptr)
      base.items.push_back(member);
    else
      *old = member;
    JsonNode* sources = base.find("sources");  // of the figure that was replaced
    if (sources != nullptr) std::erase_if(sources->items, [&](const JsonNode& source) { return source.key == member.key; });
  }
}

}  // namespace steptwin
