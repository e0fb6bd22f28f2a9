// "model": a preset, a Hugging Face config, or every field.
#include <fmt/format.h>

#include <algorithm>

#include "schedule/scenario_parts.h"

namespace steptwin {
namespace {

constexpr IntegerRange kLayers{1, 10000};
constexpr IntegerRange kWidth{1, 1 << 20};
constexpr IntegerRange kFfn{1, 1 << 22};
constexpr IntegerRange kHeads{1, 1 << 16};
constexpr IntegerRange kVocabulary{1, 1 << 27};
constexpr IntegerRange kPositions{1, 1 << 26};

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const ModelShape& preset : model_presets()) names.push_back(preset.name);
  return names;
}

// Fields that may stand beside a preset or config: they change no other field's meaning.
void read_variations(const JsonObject& o, ModelShape& model) {
  model.layers = o.integer("layers", kLayers).value_or(model.layers);
  model.vocabulary = o.integer("vocabulary", kVocabulary).value_or(model.vocabulary);
  model.positions = o.integer("positions", kPositions).value_or(model.positions);
  model.tied = o.boolean("tied").value_or(model.tied);
  model.flash_attention = o.boolean("flash_attention").value_or(model.flash_attention);
  model.dropout = o.number("dropout", {0, 0.99}).value_or(model.dropout);
  model.layers_per_block = o.integer("layers_per_block", kLayers).value_or(model.layers_per_block);
  if (const JsonNode* frozen = o.find("frozen"); frozen != nullptr && frozen->type == JsonType::String)
    model.frozen = {frozen->text};  // one pattern = a list of one
  else
    model.frozen = o.strings("frozen").value_or(model.frozen);
}

std::string frozen_help(const ModelShape& model, const std::string& pattern, const std::vector<std::string>& names) {
  if (model.tied && matches_name(pattern, "head.weight")) return "the head is tied: its table is 'embed.token.weight'";
  const std::string near = nearest_pattern(pattern, names);
  if (!near.empty()) return fmt::format("did you mean '{}'?", near);
  return fmt::format("parameters are named like '{}' (layers 0 to {}); `*` stands for any characters, `0-3` for numbers",
                     names[names.size() / 2], model.layers - 1);
}

void check_frozen(ScenarioReading& r, const JsonObject& o) {
  const ModelShape& model = r.scenario.model;
  if (model.frozen.empty()) return;
  const JsonNode& list = *o.find("frozen");
  const std::vector<std::string> names = parameter_names(model);
  bool trained = false;
  std::vector<bool> used(model.frozen.size());
  for (const std::string& name : names) {
    bool frozen = false;
    for (std::size_t i = 0; i < used.size(); ++i)
      if (matches_name(model.frozen[i], name)) used[i] = frozen = true;
    trained = trained || !frozen;
  }
  for (std::size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      r.problems.error("FROZEN", list.items.empty() ? list : list.items[i], fmt::format("no parameter is named {}", in_quotes(model.frozen[i])),
                       frozen_help(model, model.frozen[i], names));
  if (!trained)
    r.problems.error("FROZEN", list, "every parameter is frozen: there is nothing to train", "remove a pattern, or make one narrower");
}

void refuse_widths(ScenarioReading& r, const JsonObject& o, const std::string& origin) {
  for (const char* key : {"family", "hidden", "heads", "kv_heads", "head_size", "ffn"}) {
    if (!o.has(key)) continue;
    r.problems.error_at_key(
        "CONFLICT", *o.find(key), fmt::format("{} is fixed by the {}", in_quotes(key), origin),
        "beside it you may state layers, vocabulary, positions, tied, flash_attention, dropout, layers_per_block, frozen; or state all fields instead");
  }
}

void read_explicit(ScenarioReading& r, const JsonObject& o) {
  ModelShape& model = r.scenario.model;
  model.name = "custom";
  const std::string help = "state a \"preset\", an \"hf_config\", or family, layers, hidden, heads and vocabulary";
  for (const char* key : {"family", "layers", "hidden", "heads", "vocabulary"}) {
    if (!o.require(key, help)) return;  // one hint is enough
  }
  model.family = o.choice("family", {"gpt", "llama"}).value_or(0) == 0 ? Family::Gpt : Family::Llama;
  const bool gpt = model.family == Family::Gpt;
  model.hidden = o.integer("hidden", kWidth).value_or(1);
  model.heads = o.integer("heads", kHeads).value_or(1);
  model.kv_heads = o.integer("kv_heads", kHeads).value_or(model.heads);
  model.head_size = o.integer("head_size", kWidth).value_or(std::max<std::int64_t>(model.hidden / model.heads, 1));
  model.tied = gpt;
  model.ffn = o.integer("ffn", kFfn).value_or(4 * model.hidden);
  if (!gpt) o.require("ffn", "a Llama model states the width of its MLP");
  if (gpt) o.require("positions", "a GPT model has a learned row for each position: state how many");
  model.positions = 0;  // Llama: filled from the batch when not stated
  read_variations(o, model);
}

void read_from_preset(ScenarioReading& r, const JsonObject& o) {
  const std::vector<std::string> names = preset_names();
  const std::optional<std::size_t> index = o.choice("preset", names);
  if (!index) return;
  r.scenario.model = model_presets()[*index];
  r.model_origin = "preset " + names[*index];
  refuse_widths(r, o, r.model_origin);
  read_variations(o, r.scenario.model);
}

void read_from_config(ScenarioReading& r, const JsonObject& o) {
  const JsonNode& node = *o.find("hf_config");
  if (!o.string("hf_config")) return;
  const std::string path = r.resolve_path(node);
  if (!r.guarded(node, [&] { r.scenario.model = load_hf_config(path); })) return;
  r.model_origin = "hf_config " + path;
  refuse_widths(r, o, "hf_config");
  read_variations(o, r.scenario.model);
}

}  // namespace

void read_model(ScenarioReading& r) {
  if (!r.root.require("model", "for example \"model\": {\"preset\": \"gpt2\"}; presets: " + join_names(preset_names()))) return;
  const JsonObject o = r.section("model");
  if (!o.present()) return;
  if (o.has("preset") && o.has("hf_config")) {
    r.problems.error_at_key("CONFLICT", *o.find("hf_config"), "\"preset\" and \"hf_config\" both say which model", "remove one of the two");
    return;
  }
  const std::size_t before = r.problems.count();
  if (o.has("preset"))
    read_from_preset(r, o);
  else if (o.has("hf_config"))
    read_from_config(r, o);
  else
    read_explicit(r, o);
  if (r.problems.count() == before) check_frozen(r, o);
}

}  // namespace steptwin
