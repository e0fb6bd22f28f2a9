#include "schedule/model/model.h"

namespace steptwin {
namespace {

struct GptRow {
  const char* name;
  std::int64_t layers, hidden, heads, vocabulary, positions;
};

ModelShape gpt(const GptRow& row) {
  ModelShape model;
  model.name = row.name;
  model.family = Family::Gpt;
  model.layers = row.layers;
  model.hidden = row.hidden;
  model.heads = model.kv_heads = row.heads;
  model.head_size = row.hidden / row.heads;
  model.ffn = 4 * row.hidden;
  model.vocabulary = row.vocabulary;
  model.positions = row.positions;
  model.tied = true;
  return model;
}

struct LlamaRow {
  const char* name;
  std::int64_t layers, hidden, heads, kv_heads, ffn, vocabulary, positions;
};

ModelShape llama(const LlamaRow& row) {
  ModelShape model;
  model.name = row.name;
  model.family = Family::Llama;
  model.layers = row.layers;
  model.hidden = row.hidden;
  model.heads = row.heads;
  model.kv_heads = row.kv_heads;
  model.head_size = row.hidden / row.heads;
  model.ffn = row.ffn;
  model.vocabulary = row.vocabulary;
  model.positions = row.positions;
  return model;
}

// GPT-2: Radford et al. 2019 and the released config.json files. GPT-3 175B: Brown et al. 2020 table 2.1, with the vocabulary
// padded to 51200 as in Megatron's and Korthikanti's runs (specs/memory.md T-10). Llama 2: Touvron et al. 2023; Llama 3 and 3.1 (405B,
// positions 131072): Grattafiori et al. 2024.
std::vector<ModelShape> make_presets() {
  return {
      gpt({"gpt2", 12, 768, 12, 50257, 1024}),
      gpt({"gpt2-medium", 24, 1024, 16, 50257, 1024}),
      gpt({"gpt2-large", 36, 1280, 20, 50257, 1024}),
      gpt({"gpt2-xl", 48, 1600, 25, 50257, 1024}),
      gpt({"gpt3-175b", 96, 12288, 96, 51200, 2048}),
      llama({"llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096}),
      llama({"llama2-13b", 40, 5120, 40, 40, 13824, 32000, 4096}),
      llama({"llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096}),
      llama({"llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192}),
      llama({"llama3-70b", 80, 8192, 64, 8, 28672, 128256, 8192}),
      llama({"llama3-405b", 126, 16384, 128, 8, 53248, 128256, 131072}),
  };
}

}  // namespace

const std::vector<ModelShape>& model_presets() {
  static const std::vector<ModelShape> presets = make_presets();
  return presets;
}

}  // namespace steptwin
