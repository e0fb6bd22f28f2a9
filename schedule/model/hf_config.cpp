// Hugging Face config.json of model_type gpt2 or llama -> ModelShape. Only keys that decide shapes are read. Defaults are those of
// transformers' GPT2Config and LlamaConfig where config.json leaves a key out (its writer omits tie_word_embeddings = true).
#include <fmt/format.h>

#include <string>

#include "schedule/json/json_reader.h"
#include "schedule/model/model.h"

namespace steptwin {
namespace {

// Bounds far above any real model, low enough that no parameter count overflows int64 (sizes_fit judges the rest, with the batch).
constexpr IntegerRange kWidth{1, 1 << 20};
constexpr IntegerRange kCount{1, 1 << 12};     // layers, heads
constexpr IntegerRange kHeadSize{1, 1 << 12};
constexpr IntegerRange kVocabulary{1, 1 << 26};
constexpr IntegerRange kPositions{1, std::int64_t{1} << 30};
constexpr std::int64_t kLlamaPositions = 2048;  // LlamaConfig's default

std::int64_t required(const JsonObject& object, const char* key, IntegerRange range) {
  if (!object.require(key)) return 0;
  return object.integer(key, range).value_or(0);
}

// An absent key and an explicit null both mean the default.
std::int64_t optional(const JsonObject& object, const char* key, IntegerRange range, std::int64_t otherwise) {
  if (!object.has(key) || object.is_null(key)) return otherwise;
  return object.integer(key, range).value_or(0);
}

// A switch that would add parameters that this family's description does not have.
void refuse(const JsonObject& object, const char* key, const std::string& what) {
  if (!object.has(key) || object.is_null(key) || !object.boolean(key).value_or(false)) return;
  object.problems().error("UNSUPPORTED", *object.find(key),
                          fmt::format("{} adds parameters that steptwin does not describe: {}", in_quotes(key), what),
                          "set it to false, or state the model's fields in the scenario as an approximation");
}

// Reported at `key` when `whole` is no multiple of `part`; 0 = already reported as missing or wrong.
void must_divide(const JsonObject& object, const char* key, std::int64_t part, std::int64_t whole, const char* whole_name) {
  if (part == 0 || whole == 0 || whole % part == 0) return;
  object.problems().error("RANGE", *object.find(key),
                          fmt::format("{} is {}, which does not divide {} = {}", in_quotes(key), part, whole_name, whole),
                          fmt::format("choose a divisor of {}", whole));
}

void read_gpt2(const JsonObject& object, ModelShape& model) {
  model.family = Family::Gpt;
  model.layers = required(object, "n_layer", kCount);
  model.hidden = required(object, "n_embd", kWidth);
  model.heads = model.kv_heads = required(object, "n_head", kCount);
  model.vocabulary = required(object, "vocab_size", kVocabulary);
  model.positions = required(object, "n_positions", kPositions);
  model.ffn = optional(object, "n_inner", kWidth, 4 * model.hidden);
  model.tied = object.boolean("tie_word_embeddings").value_or(true);
  must_divide(object, "n_head", model.heads, model.hidden, "n_embd");
  if (model.heads > 0) model.head_size = model.hidden / model.heads;
  refuse(object, "add_cross_attention", "cross attention");
}

void read_llama(const JsonObject& object, ModelShape& model) {
  model.family = Family::Llama;
  model.layers = required(object, "num_hidden_layers", kCount);
  model.hidden = required(object, "hidden_size", kWidth);
  model.ffn = required(object, "intermediate_size", kWidth);
  model.heads = required(object, "num_attention_heads", kCount);
  model.kv_heads = optional(object, "num_key_value_heads", kCount, model.heads);
  model.vocabulary = required(object, "vocab_size", kVocabulary);
  model.positions = optional(object, "max_position_embeddings", kPositions, kLlamaPositions);
  model.tied = object.boolean("tie_word_embeddings").value_or(false);
  if (object.has("num_key_value_heads")) must_divide(object, "num_key_value_heads", model.kv_heads, model.heads, "num_attention_heads");
  const bool stated = object.has("head_dim") && !object.is_null("head_dim");
  if (!stated) must_divide(object, "num_attention_heads", model.heads, model.hidden, "hidden_size");
  model.head_size = optional(object, "head_dim", kHeadSize, model.heads > 0 ? model.hidden / model.heads : 0);
  refuse(object, "attention_bias", "biases of the attention projections");
  refuse(object, "mlp_bias", "biases of the MLP projections");
}

ModelShape read_model(const JsonDocument& document, JsonProblems& problems) {
  const JsonObject object(&document.root(), problems);
  ModelShape model;
  if (object.require("model_type", "steptwin reads the config.json of gpt2 and llama models")) {
    const std::string type = object.string("model_type").value_or("");
    model.name = type;
    if (type == "gpt2") {
      read_gpt2(object, model);
    } else if (type == "llama") {
      read_llama(object, model);
    } else if (!type.empty() || object.find("model_type")->type == JsonType::String) {
      problems.error("UNKNOWN-VALUE", *object.find("model_type"), fmt::format("model_type {} is not supported", in_quotes(type)),
                     "supported: gpt2, llama; for another decoder-only model state the fields in the scenario's \"model\"");
    }
  }
  problems.throw_if_errors();
  return model;
}

}  // namespace

ModelShape load_hf_config(const std::string& path) {
  JsonProblems problems;
  return read_model(JsonDocument::read(path, problems), problems);
}

ModelShape parse_hf_config(std::string_view text, const std::string& file) {
  JsonProblems problems;
  return read_model(JsonDocument::parse(text, file, problems), problems);
}

}  // namespace steptwin
