#include <fmt/format.h>

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
  return parameters;
}

std::vector<Parameter> attention_parameters(const ModelShape& model, std::int64_t layer) {
  const std::string prefix = fmt::format("layers.{}.attn", layer);
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
  return parameters;
}

std::vector<Parameter> mlp_parameters(const ModelShape& model, std::int64_t layer) {
  const std::string prefix = fmt::format("layers.{}.mlp", layer);
  std::vector<Parameter> parameters;
  add_norm(model, prefix + ".norm", parameters);
  if (!is_gpt(model)) add_linear(model, prefix + ".gate", model.hidden, model.ffn, parameters);
  add_linear(model, prefix + ".up", model.hidden, model.ffn, parameters);
  add_linear(model, prefix + ".down", model.ffn, model.hidden, parameters);
  return parameters;
}

std::vector<Parameter> head_parameters(const ModelShape& model) {
  std::vector<Parameter> parameters;
  add_norm(model, "head.norm", parameters);
  parameters.push_back({"head.weight", {model.vocabulary, model.hidden}, model.tied});
  return parameters;
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

std::int64_t parameter_count(const ModelShape& model) {
  const std::int64_t layer = own_elements(attention_parameters(model, 0)) + own_elements(mlp_parameters(model, 0));
  return own_elements(embedding_parameters(model)) + model.layers * layer + own_elements(head_parameters(model));
}

}  // namespace steptwin
