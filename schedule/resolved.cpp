// The scenario as it holds: every value with its default, keys sorted, and where each value came from.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "schedule/base/digest.h"
#include "schedule/machine/profile_reader.h"
#include "schedule/scenario_parts.h"

namespace steptwin {
namespace {

using Json = nlohmann::json;  // sorted keys

Json model_json(const ModelShape& m) {
  Json out = {{"name", m.name},
              {"family", m.family == Family::Gpt ? "gpt" : "llama"},
              {"layers", m.layers},
              {"hidden", m.hidden},
              {"heads", m.heads},
              {"kv_heads", m.kv_heads},
              {"head_size", m.head_size},
              {"ffn", m.ffn},
              {"vocabulary", m.vocabulary},
              {"positions", m.positions},
              {"tied", m.tied},
              {"flash_attention", m.flash_attention},
              {"dropout", m.dropout}};
  if (m.layers_per_block > 1) out["layers_per_block"] = m.layers_per_block;
  if (!m.frozen.empty()) out["frozen"] = m.frozen;
  return out;
}

Json mesh_json(const Mesh& mesh) {
  Json out = Json::object();
  out["order"] = Json::array();
  for (const Axis& axis : mesh.axes) {
    out[axis.name] = axis.size;
    out["order"].push_back(axis.name);
  }
  return out;
}

const char* name_of_mode(P2pMode mode) {
  switch (mode) {
    case P2pMode::Lanes:
      return "lanes";
    case P2pMode::OneLane:
      return "one_lane";
    case P2pMode::Grouped:
      return "grouped";
    case P2pMode::Compute:
      return "compute";
    case P2pMode::ComputeRecv:
      return "compute_recv";
  }
  return "";
}

Json schedule_json(const ScenarioReading& r) {
  const Scenario& s = r.scenario;
  Json out = {{"order", s.order}, {"p2p", name_of_mode(s.p2p)}};
  if (s.p2p_metadata) out["metadata"] = true;
  if (s.order == "csv") out["csv_sha256"] = r.csv_sha256;  // what it says counts, not where it lies
  if (s.order == "gpipe") out["backward"] = s.backward_descending ? "descending" : "ascending";
  if (!s.layers_per_stage.empty()) out["layers_per_stage"] = s.layers_per_stage;
  if (!s.warm_up.empty()) out["warm_up"] = s.warm_up;
  return out;
}

double us(Duration t) { return static_cast<double>(ns(t)) / 1e3; }

Json us_list(const std::vector<Duration>& times) {
  Json out = Json::array();
  for (const Duration t : times) out.push_back(us(t));
  return out;
}

Json cost_json(const GivenCost& c) {
  return {{"model", "given"},
          {"forward_us", us_list(c.forward)},
          {"input_grad_us", us_list(c.input_grad)},
          {"weight_grad_us", us_list(c.weight_grad)},
          {"optimizer_us", us_list(c.optimizer)},
          {"p2p_us", us(c.p2p)}};
}

Json machine_json(const Scenario& s) {
  Json out = Json::parse(machine_to_json(*s.machine));
  out.erase("format");
  if (out.contains("measured")) out["measured"] = "sha256 " + sha256_hex(out["measured"].dump());
  out["nodes"] = s.nodes;
  return out;
}

Json deepspeed_json(const ZeroOptions& z) {
  const DeepspeedOptions& d = z.deepspeed;
  return {{"level", 3},
          {"form", "deepspeed"},
          {"prefetch_bucket_size", d.prefetch_bucket_size},
          {"max_live_parameters", d.max_live_parameters},
          {"max_reuse_distance", d.max_reuse_distance},
          {"param_persistence_threshold", d.param_persistence_threshold},
          {"reduce_bucket_size", d.reduce_bucket_size},
          {"overlap_comm", d.overlap_comm},
          {"communicators", z.communicators}};
}

// Level 0 has no other key: what does not hold is not stated.
Json zero_json(const ZeroOptions& z) {
  Json out = {{"level", z.level}};
  if (z.level == 0) return out;
  if (z.form == ZeroForm::Deepspeed) return deepspeed_json(z);
  out["reduce"] = z.reduce == ZeroReduce::Step ? "step" : "micro_batch";
  out["ends"] = z.ends == ZeroEnds::Sharded ? "sharded" : "whole";
  if (z.shard_ranks > 0) out["shard_ranks"] = z.shard_ranks;
  constexpr const char* kForms[] = {"list", "block", "fsdp"};
  if (z.level >= 2) out["form"] = kForms[static_cast<std::size_t>(z.form)], out["prefetch"] = z.prefetch;
  if (z.level == 3) out["reshard"] = z.reshard;
  if (z.enter == ZeroEnter::Step) out["enter"] = "step";
  if (z.form == ZeroForm::Fsdp) out["communicators"] = z.communicators;
  return out;
}

// What is off is not stated.
Json optimizer_json(const Scenario& s) {
  Json out = {{"kind", s.optimizer == OptimizerKind::Adam ? "adam" : "none"}};
  if (s.offload) out["offload"] = true;
  if (s.clip > 0) out["clip"] = s.clip;
  if (s.overflow_check) out["overflow_check"] = true;
  if (s.loss_scaling.initial == 0) return out;
  out["loss_scale"] = s.loss_scaling.initial;
  out["loss_scale_factor"] = s.loss_scaling.factor;
  out["loss_scale_steps"] = s.loss_scaling.good_steps;
  return out;
}

Json recompute_json(const Scenario& s) {
  constexpr const char* kNames[] = {"none", "full", "every", "sqrt"};
  Json out = {{"mode", kNames[static_cast<std::size_t>(s.recompute)]}};
  if (s.recompute == RecomputeMode::Every) out["every"] = s.recompute_every;
  if (s.hidden_states) out["hidden_states"] = true;
  return out;
}

Json canonical(const ScenarioReading& r) {
  const Scenario& s = r.scenario;
  Json out = {{"format", 1}, {"name", s.name}, {"model", model_json(s.model)}, {"mesh", mesh_json(s.mesh)}};
  out["batch"] = {{"micro_batches", s.micro_batches}, {"micro_batch_size", s.batch.micro_batch}, {"sequence_length", s.batch.sequence}};
  out["precision"] = {{"compute", name_of(s.compute)}, {"master", name_of(s.master)}, {"gradient", name_of(s.gradient)}};
  out["schedule"] = schedule_json(r);
  if (s.pipeline.form == PipelineForm::Bmtrain) out["pipeline"] = {{"form", "bmtrain"}, {"micro_batches", s.pipeline.micro_batches}};
  out["zero"] = zero_json(s.zero);
  out["recompute"] = recompute_json(s);
  if (s.reduce != s.gradient) out["precision"]["reduce"] = name_of(s.reduce);
  out["optimizer"] = optimizer_json(s);
  out["data_parallel"] = {{"reduce", s.gradient_reduce == GradientReduce::Overlap ? "overlap" : "end"},
                          {"bucket_mib", static_cast<double>(s.bucket_bytes.value) / 1048576}};
  out["run"] = {{"steps", s.steps}, {"lazy_state", s.lazy_state}};
  if (s.task == RunTask::Save) out["run"]["task"] = "save";
  out["assume"] = {{"overflow", s.assume_overflow}};
  if (s.machine) out["machine"] = machine_json(s);
  if (s.given) out["cost"] = cost_json(*s.given);
  return out;
}

std::string origin_of_node(const JsonNode& node) {
  if (node.from_override()) return "--set";
  const Place place = place_of(node);
  return fmt::format("{}:{}", place.file, place.line);
}

// Who said the value at this path: the file, --set, a preset or config it builds on, or nobody.
std::string origin_of(const ScenarioReading& r, const std::vector<std::string>& path) {
  const JsonNode* node = r.root.node();
  for (const std::string& key : path) {
    if (node == nullptr || node->type != JsonType::Object) break;
    node = node->find(key);
  }
  if (node != nullptr) return origin_of_node(*node);
  if (path.back() == "csv_sha256" && r.node("schedule", "csv") != nullptr) return origin_of_node(*r.node("schedule", "csv"));
  if (path.front() == "model" && !r.model_origin.empty()) return r.model_origin;
  if (path.front() == "machine" && path.back() != "nodes") return r.machine_origin;
  return "default";
}

void list_leaves(const ScenarioReading& r, const Json& value, std::vector<std::string>& path, std::vector<ResolvedValue>& out) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      path.push_back(key);
      list_leaves(r, member, path, out);
      path.pop_back();
    }
    return;
  }
  out.push_back({fmt::format("{}", fmt::join(path, ".")), value.dump(), origin_of(r, path)});
}

}  // namespace

void resolve(ScenarioReading& r) {
  const Json json = canonical(r);
  r.scenario.canonical_json = json.dump();
  r.scenario.sha256 = sha256_hex(r.scenario.canonical_json);
  std::vector<std::string> path;
  list_leaves(r, json, path, r.scenario.resolved);
}

std::string resolved_listing(const Scenario& scenario) {
  constexpr std::size_t kWidestValue = 40;  // longer ones (curves) push their origin to the right
  std::size_t path_width = 0, value_width = 0;
  for (const ResolvedValue& v : scenario.resolved) {
    path_width = std::max(path_width, v.path.size());
    if (v.value.size() <= kWidestValue) value_width = std::max(value_width, v.value.size());
  }
  std::string out;
  for (const ResolvedValue& v : scenario.resolved)
    out += fmt::format("{:<{}}  {:<{}}  {}\n", v.path, path_width, v.value, value_width, v.origin);
  return out;
}

}  // namespace steptwin
