// Machine -> profile JSON, in the units of the keys.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "schedule/machine/measured_profile.h"
#include "schedule/machine/profile_reader.h"

namespace steptwin {
namespace {

using Json = nlohmann::ordered_json;

// The shortest decimal that reads back as the same bytes: 139.28, not 139.28000000026077.
double gib(Bytes bytes) {
  constexpr double kGib = 1073741824.0;
  const double exact = static_cast<double>(bytes.value) / kGib;
  for (int digits = 1; digits < 17; ++digits) {
    const double shorter = std::stod(fmt::format("{:.{}g}", exact, digits));
    if (std::llround(shorter * kGib) == bytes.value) return shorter;
  }
  return exact;
}
double gb_per_s(BytesPerSecond rate) { return rate.value / 1e9; }
double tflops(FlopsPerSecond rate) { return rate.value / 1e12; }
double us(Duration duration) { return static_cast<double>(ns(duration)) / 1e3; }

Json curve(const EfficiencyCurve& c, const char* size_key, double unit) {
  Json list = Json::array();
  for (const auto& [at_least, efficiency] : c.steps) list.push_back({{size_key, at_least / unit}, {"efficiency", efficiency}});
  return list;
}

Json device_json(const Device& d) {
  Json peaks = Json::object();
  for (const auto& [type, rate] : d.matrix_peak) peaks[name_of(type)] = tflops(rate);
  return {{"name", d.name},
          {"memory_gib", gib(d.memory)},
          {"memory_bandwidth_gb_per_s", gb_per_s(d.memory_bandwidth)},
          {"matrix_peak_tflops", peaks},
          {"vector_peak_tflops", tflops(d.vector_peak)},
          {"matrix_efficiency", curve(d.matrix_efficiency, "at_least_gflop", 1e9)},
          {"attention_efficiency", curve(d.attention_efficiency, "at_least_gflop", 1e9)},
          {"memory_efficiency", curve(d.memory_efficiency, "at_least_mb", 1e6)}};
}

Json link_json(const Link& link) {
  return {{"bandwidth_gb_per_s", gb_per_s(link.bandwidth)}, {"efficiency", link.efficiency}, {"latency_us", us(link.latency)}};
}

Json host_json(const Host& h) {
  Json out = {{"kernel_launch_us", us(h.kernel_launch)},
          {"transfer_launch_us", us(h.transfer_launch)},
          {"run_ahead_micro_batches", h.run_ahead_micro_batches},
          {"ranks_per_thread", h.ranks_per_thread},
          {"compute_slots", h.compute_slots},
          {"slot_scope", h.slot_scope == SlotScope::Everything ? "everything" : "compute"},
          {"compute_contention", h.compute_contention},
          {"turnaround_us", us(h.turnaround)},
          {"pinned_memory_gib", gib(h.pinned_memory)},
          {"pageable_memory_gib", gib(h.pageable_memory)}};
  if (h.memory_bandwidth) out["memory_bandwidth_gb_per_s"] = gb_per_s(*h.memory_bandwidth);
  return out;
}

Json machine_json(const Machine& m) {
  Json out = {{"format", 1}, {"name", m.name}, {"devices_per_node", m.devices_per_node}, {"ranks_per_device", m.ranks_per_device}};
  if (m.nodes) out["nodes"] = *m.nodes;
  out["device"] = device_json(m.device);
  out["intra_node"] = link_json(m.intra_node);
  out["inter_node"] = link_json(m.inter_node);
  out["copy_up"] = link_json(m.copy_up);
  out["copy_down"] = link_json(m.copy_down);
  out["link_sharing"] = m.sharing == LinkSharing::Fair ? "fair" : "none";
  out["host"] = host_json(m.host);
  if (m.disk)
    out["disk"] = {
        {"read_gb_per_s", gb_per_s(m.disk->read)}, {"write_gb_per_s", gb_per_s(m.disk->write)}, {"capacity_gib", gib(m.disk->capacity)}};
  if (m.measured) out["measured"] = Json::parse(measured_to_json(*m.measured));
  return out;
}

// "/host/compute_slots" -> section "host" (none: the top), key "compute_slots".
void add_source(Json& machine, const std::string& pointer, const std::string& text) {
  const std::size_t slash = pointer.rfind('/');
  const Json::json_pointer section(pointer.substr(0, slash));
  const std::string key = pointer.substr(slash + 1);
  if (machine.contains(section) && machine[section].contains(key)) machine[section]["sources"][key] = text;
}

}  // namespace

std::string machine_to_json(const Machine& machine) { return machine_json(machine).dump(2) + "\n"; }

std::string machine_profile_json(const Machine& machine) {
  Json out = machine_json(machine);
  for (const auto& [pointer, text] : machine.sources) add_source(out, pointer, text);
  return out.dump(2) + "\n";
}

}  // namespace steptwin
