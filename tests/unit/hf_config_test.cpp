// Hugging Face config.json of the two families: shapes, defaults, and errors with their places.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/base/error.h"
#include "schedule/model/model.h"

namespace steptwin {
namespace {

std::string data(const std::string& name) { return std::string(TEST_DIR) + "/data/hf/" + name; }

ModelShape preset(const std::string& name) {
  for (const ModelShape& model : model_presets()) {
    if (model.name == name) return model;
  }
  return {};
}

std::vector<Diagnostic> problems_of(const std::string& text) {
  try {
    parse_hf_config(text, "config.json");
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}

TEST(HfConfig, Gpt2EqualsThePreset) {
  ModelShape expected = preset("gpt2");
  EXPECT_EQ(load_hf_config(data("gpt2.json")), expected);
}

TEST(HfConfig, Llama3EqualsThePreset) {
  ModelShape model = load_hf_config(data("llama3_8b.json"));
  EXPECT_EQ(parameter_count(model), 8030261248);  // T-12
  model.name = "llama3-8b";
  EXPECT_EQ(model, preset("llama3-8b"));
}

TEST(HfConfig, LlamaDefaults) {
  ModelShape model = load_hf_config(data("llama2_7b_short.json"));
  EXPECT_EQ(model.kv_heads, 32);
  EXPECT_EQ(model.head_size, 128);
  EXPECT_FALSE(model.tied);
  EXPECT_EQ(parameter_count(model), 6738415616);  // T-12
}

TEST(HfConfig, HeadDimMayDifferFromHiddenOverHeads) {
  const ModelShape model = load_hf_config(data("llama_head_dim.json"));
  EXPECT_EQ(model.head_size, 64);
  EXPECT_TRUE(model.tied);
  EXPECT_EQ(model.positions, 2048);
  // L(2had + 2hkd + 3hf + 2h) + Vh + h, tied
  EXPECT_EQ(parameter_count(model), 3 * (2 * 256 * 6 * 64 + 2 * 256 * 2 * 64 + 3 * 256 * 688 + 2 * 256) + 1000 * 256 + 256);
}

TEST(HfConfig, UnknownModelTypeNamesTheSupportedOnes) {
  try {
    load_hf_config(data("mistral.json"));
    FAIL() << "accepted";
  } catch (const InputError& error) {
    ASSERT_EQ(error.problems().size(), 1u);
    const Diagnostic& problem = error.problems()[0];
    EXPECT_EQ(problem.place.line, 2);
    EXPECT_EQ(problem.place.pointer, "/model_type");
    EXPECT_THAT(problem.text, testing::HasSubstr("mistral"));
    EXPECT_THAT(problem.help, testing::HasSubstr("gpt2, llama"));
  }
}

TEST(HfConfig, AllProblemsAtOnceInFileOrder) {
  try {
    load_hf_config(data("broken.json"));
    FAIL() << "accepted";
  } catch (const InputError& error) {
    std::vector<std::string> seen;
    for (const Diagnostic& problem : error.problems()) seen.push_back(problem.code + " " + std::to_string(problem.place.line));
    EXPECT_THAT(seen, testing::UnorderedElementsAre("MISSING 1", "TYPE 4", "RANGE 5", "RANGE 6", "RANGE 7", "UNSUPPORTED 8"));
  }
}

TEST(HfConfig, MissingModelType) {
  const auto problems = problems_of("{\"hidden_size\": 8}");
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].code, "MISSING");
}

TEST(HfConfig, NeverCrashesOnOtherJson) {
  const std::vector<const char*> texts = {
      "[]", "3", "null", "{}", "{", "", "{\"model_type\": 3}", "{\"model_type\": \"\"}", "{\"model_type\": \"gpt2\"}",
      "{\"model_type\": \"gpt2\", \"n_layer\": 1e300, \"n_embd\": -1, \"n_head\": 0, \"n_inner\": [], \"vocab_size\": {}}"};
  for (const char* text : texts) {
    EXPECT_FALSE(problems_of(text).empty()) << text;
  }
}

TEST(HfConfig, AMissingFileIsAnEnvironmentError) { EXPECT_THROW(load_hf_config(data("no_such_file.json")), EnvironmentError); }

}  // namespace
}  // namespace steptwin
