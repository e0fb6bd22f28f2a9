#include "schedule/scenario_keys.h"

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/machine/profile_reader.h"

namespace steptwin {
namespace {

std::vector<std::string> machine_keys() {
  std::vector<std::string> keys = {"preset", "profile"};
  keys.insert(keys.end(), machine_figure_keys().begin(), machine_figure_keys().end());
  return keys;
}

}  // namespace

const std::vector<ScenarioSection>& scenario_sections() {
  static const std::vector<ScenarioSection> kSections = {
      {"",
       {"$schema", "format", "name", "model", "mesh", "batch", "precision", "schedule", "pipeline", "zero", "recompute", "optimizer",
        "data_parallel", "machine", "cost", "run", "assume"}},
      {"model",
       {"preset", "hf_config", "family", "layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocabulary", "positions", "tied",
        "flash_attention", "dropout", "layers_per_block", "frozen"}},
      {"mesh", {"pp", "dp", "cp", "ep", "tp", "order"}},
      {"batch", {"micro_batches", "micro_batch_size", "sequence_length"}},
      {"precision", {"compute", "master", "gradient", "reduce"}},
      {"schedule", {"order", "csv", "p2p", "metadata", "layers_per_stage", "warm_up", "backward"}},
      {"pipeline", {"form", "micro_batches"}},
      {"zero",
       {"level", "form", "reshard", "prefetch", "reduce", "enter", "ends", "shard_ranks", "prefetch_bucket_size", "max_live_parameters",
        "max_reuse_distance", "param_persistence_threshold", "reduce_bucket_size", "overlap_comm", "communicators"}},
      {"recompute", {"mode", "every", "hidden_states"}},
      {"optimizer", {"kind", "offload", "clip", "overflow_check", "loss_scale", "loss_scale_factor", "loss_scale_steps"}},
      {"data_parallel", {"reduce", "bucket_mib"}},
      {"machine", machine_keys()},
      {"cost", {"model", "forward_us", "input_grad_us", "weight_grad_us", "p2p_us", "optimizer_us"}},
      {"run", {"task", "steps", "lazy_state"}},
      {"assume", {"overflow"}},
  };
  return kSections;
}

bool is_scenario_section(std::string_view name) {
  const auto& all = scenario_sections();
  return !name.empty() && std::any_of(all.begin(), all.end(), [&](const ScenarioSection& s) { return name == s.name; });
}

const std::vector<std::string>& keys_of(std::string_view section) {
  for (const ScenarioSection& s : scenario_sections()) {
    if (section == s.name) return s.keys;
  }
  throw InternalError("no such scenario section");
}

std::vector<std::string> scenario_paths() {
  std::vector<std::string> paths;
  for (const ScenarioSection& section : scenario_sections()) {
    const std::string prefix = *section.name == '\0' ? "" : std::string(section.name) + ".";
    for (const std::string& key : section.keys) {
      if (!prefix.empty() || !is_scenario_section(key)) paths.push_back(prefix + key);
    }
  }
  return paths;
}

}  // namespace steptwin
