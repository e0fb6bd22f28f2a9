#include <fmt/format.h>

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/model/model.h"

namespace steptwin {
namespace {

bool is_gpt(const ModelShape& model) { return model.family == Family::Gpt; }

// LayerNorm: weight and bias; RMSNorm: weight.
void add_norm(const ModelShape& model, const std::string& prefix, std::vector<Parameter>& parameters) {
  parameters.push_back({prefix + ".weight", {model.hidden}});
  if (is_gpt(model)) parameters.push_back({prefix + ".bias", {model.hidden}});
}

// Weights are [out, in], as LibTorch's linear takes them. GPT projections have a bias.
void add_linear(const ModelShape& model, const std::string& prefix, std::int64_t in, std::int64_t out, std::vector<Parameter>& parameters) {
  parameters.push_back({prefix + ".weight", {out, in}});
  if (is_gpt(model)) parameters.push_back({prefix + ".bias", {out}});
}

std::vector<Parameter> marked(const ModelShape& model, std::vector<Parameter> parameters) {
  for (Parameter& parameter : parameters) {
    const std::string name = parameter.tied ? "embed.token.weight" : parameter.name;
    parameter.frozen =
        std::any_of(model.frozen.begin(), model.frozen.end(), [&](const auto& pattern) { return matches_name(pattern, name); });
  }
  return parameters;
}

std::int64_t own_elements(const std::vector<Parameter>& parameters) {
  std::int64_t sum = 0;
  for (const Parameter& parameter : parameters) sum += parameter.tied ? 0 : parameter.elements();
  return sum;
}

}  // namespace

std::int64_t Parameter::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::vector<Parameter> embedding_parameters(const ModelShape& model) {
  std::vector<Parameter> parameters = {{"embed.token.weight", {model.vocabulary, model.hidden}}};
  if (is_gpt(model)) parameters.push_back({"embed.position.weight", {model.positions, model.hidden}});
  return marked(model, std::move(parameters));
}

std::vector<Parameter> attention_parameters(const ModelShape& model, std::int64_t layer) {
  const std::string prefix = fmt::format("layers.{}.attn", model.first_of_block(layer));
  const std::int64_t q = model.heads * model.head_size, kv = model.kv_heads * model.head_size;
  std::vector<Parameter> parameters;
  add_norm(model, prefix + ".norm", parameters);
  if (is_gpt(model)) {
    add_linear(model, prefix + ".qkv", model.hidden, q + 2 * kv, parameters);
  } else {
    add_linear(model, prefix + ".q", model.hidden, q, parameters);
    add_linear(model, prefix + ".k", model.hidden, kv, parameters);
    add_linear(model, prefix + ".v", model.hidden, kv, parameters);
  }
  add_linear(model, prefix + ".out", q, model.hidden, parameters);
  return marked(model, std::move(parameters));
}

std::vector<Parameter> mlp_parameters(const ModelShape& model, std::int64_t layer) {
  const std::string prefix = fmt::format("layers.{}.mlp", model.first_of_block(layer));
  std::vector<Parameter> parameters;
  add_norm(model, prefix + ".norm", parameters);
  if (!is_gpt(model)) add_linear(model, prefix + ".gate", model.hidden, model.ffn, parameters);
  add_linear(model, prefix + ".up", model.hidden, model.ffn, parameters);
  add_linear(model, prefix + ".down", model.ffn, model.hidden, parameters);
  return marked(model, std::move(parameters));
}

std::vector<Parameter> head_parameters(const ModelShape& model) {
  std::vector<Parameter> parameters;
  add_norm(model, "head.norm", parameters);
  parameters.push_back({"head.weight", {model.vocabulary, model.hidden}, model.tied});
  return marked(model, std::move(parameters));
}

std::vector<Parameter> segment_parameters(const ModelShape& model, SegmentKind kind, std::int64_t layer) {
  switch (kind) {
    case SegmentKind::Embedding: return embedding_parameters(model);
    case SegmentKind::Attention: return attention_parameters(model, layer);
    case SegmentKind::Mlp: return mlp_parameters(model, layer);
    case SegmentKind::Head: return head_parameters(model);
  }
  throw InternalError("segment_parameters: unknown segment kind");
}

std::vector<std::string> parameter_names(const ModelShape& model) {
  std::vector<std::string> names;
  const auto add = [&](const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters)
      if (!parameter.tied) names.push_back(parameter.name);
  };
  add(embedding_parameters(model));
  for (std::int64_t layer = 0; layer < model.layers; layer += model.layers_per_block)
    add(attention_parameters(model, layer)), add(mlp_parameters(model, layer));
  add(head_parameters(model));
  return names;
}

std::size_t segment_place(const ModelShape& model, SegmentKind kind, std::int64_t layer) {
  if (kind == SegmentKind::Embedding) return 0;
  if (kind == SegmentKind::Head) return static_cast<std::size_t>(1 + 2 * model.layers);
  return static_cast<std::size_t>(1 + 2 * layer + (kind == SegmentKind::Mlp ? 1 : 0));
}

std::vector<WantedGradients> wanted_gradients(const ModelShape& model) {
  std::vector<WantedGradients> all;
  bool trained_below = false;
  const auto add = [&](SegmentKind kind, std::int64_t layer, std::size_t prefix) {
    WantedGradients wanted{trained_below, false, {}};
    for (const Parameter& parameter : segment_parameters(model, kind, layer)) {
      if (parameter.frozen)
        wanted.frozen.push_back(parameter.name.substr(prefix));
      else
        wanted.parameters = true;
    }
    trained_below = trained_below || wanted.parameters;
    all.push_back(std::move(wanted));
  };
  add(SegmentKind::Embedding, -1, std::string("embed.").size());
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    add(SegmentKind::Attention, layer, fmt::formatted_size("layers.{}.attn.", model.first_of_block(layer)));
    add(SegmentKind::Mlp, layer, fmt::formatted_size("layers.{}.mlp.", model.first_of_block(layer)));
  }
  add(SegmentKind::Head, -1, std::string("head.").size());
  return all;
}

std::int64_t parameter_count(const ModelShape& model) {
  const std::int64_t layer = own_elements(attention_parameters(model, 0)) + own_elements(mlp_parameters(model, 0));
  const std::int64_t blocks = (model.layers + model.layers_per_block - 1) / model.layers_per_block;
  return own_elements(embedding_parameters(model)) + blocks * layer + own_elements(head_parameters(model));
}

}  // namespace steptwin
