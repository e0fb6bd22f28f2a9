// Whatever is frozen: every order, level, form, recomputation and tying compiles without problems and simulates to its end, nothing frozen
// has a gradient or a state, and everything else has one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "schedule/compile.h"
#include "schedule/ir/verify.h"
#include "sim/cost/stated.h"
#include "sim/simulate.h"

namespace steptwin {
namespace {

constexpr int kLayers = 4;

struct Form {
  const char* mesh;
  const char* schedule;
  const char* pipeline = R"({"form": "stages"})";
};

std::string csv(const char* name, const char* text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return fmt::format(R"({{"order": "csv", "csv": "{}"}})", path);
}

std::vector<std::string> random_frozen(std::mt19937_64& random, const ModelShape& shape) {
  const auto one_of = [&](std::uint64_t n) { return random() % n; };
  const std::vector<std::string> names = parameter_names(shape);
  std::vector<std::string> patterns;
  if (one_of(3) == 0) patterns.emplace_back("embed*");
  if (one_of(3) == 0) patterns.push_back(fmt::format("layers.0-{}.*", one_of(kLayers)));
  if (one_of(4) == 0) patterns.push_back(fmt::format("layers.{}.*", one_of(kLayers)));
  if (one_of(4) == 0) patterns.emplace_back(one_of(2) == 0 ? "*.weight" : "*attn*");
  if (one_of(4) == 0) patterns.emplace_back("head.norm.*");
  for (std::uint64_t k = one_of(6); k > 0; --k) patterns.push_back(names[one_of(names.size())]);
  return patterns;
}

Scenario scenario(std::mt19937_64& random, const Form& form) {
  const auto pick = [&](std::initializer_list<const char*> from) { return std::data(from)[random() % from.size()]; };
  const bool csv_order = std::string(form.schedule).find("csv") != std::string::npos,
             split = std::string(form.schedule).find("split") != std::string::npos;
  const bool bmtrain = std::string(form.pipeline).find("bmtrain") != std::string::npos,
             one_stage = std::string(form.mesh).find(R"("pp": 1)") == 1;
  const char* const zero =
      split     ? R"({"level": 0})"
      : bmtrain ? pick({R"({"level": 0})", R"({"level": 1, "ends": "whole"})", R"({"level": 2})", R"({"level": 3, "reshard": false})"})
                : pick({R"({"level": 0})", R"({"level": 1})", R"({"level": 2})", R"({"level": 2, "form": "block"})", R"({"level": 3})",
                        R"({"level": 3, "form": "block"})", R"({"level": 3, "form": "fsdp"})", R"({"level": 3, "form": "deepspeed"})", R"({"level": 3, "reshard": false})",
                        R"({"level": 3, "ends": "whole", "reduce": "step"})", R"({"level": 3, "prefetch": 0})",
                        R"({"level": 3, "shard_ranks": 1})"});
  const char* const recompute =
      one_stage ? pick({R"({"mode": "none"})", R"({"mode": "full"})", R"({"mode": "every", "every": 2})", R"({"mode": "sqrt"})"})
      : bmtrain ? pick({R"({"mode": "none"})", R"({"mode": "full"})", R"({"mode": "every", "every": 3})"})
                : pick({R"({"mode": "none"})", R"({"mode": "full", "hidden_states": true})", R"({"mode": "every", "every": 3})"});
  const char* const optimizer =
      pick({R"({})", R"({"clip": 1})", R"({"loss_scale": 8, "clip": 1})", R"({"offload": true})", R"({"overflow_check": true})"});
  const char* const family = pick({R"("family": "gpt")", R"("family": "llama", "kv_heads": 2, "ffn": 48)"});
  const std::string text = fmt::format(
      R"({{"format": 1, "model": {{{}, "layers": {}, "hidden": 16, "heads": 4, "vocabulary": 33, "positions": 16, "tied": {}, "dropout": {},
 "flash_attention": {}}}, "mesh": {}, "batch": {{"micro_batches": {}, "micro_batch_size": 2, "sequence_length": 8}}, "schedule": {},
 "pipeline": {}, "zero": {}, "recompute": {}, "optimizer": {}, "precision": {{"reduce": "{}"}}, "run": {}, "machine": {{"preset": "cpu"}}}})",
      family, kLayers, pick({"true", "false"}), bmtrain ? "0" : pick({"0", "0.1"}), pick({"true", "false"}), form.mesh, csv_order ? 2 : 3,
      form.schedule, form.pipeline, zero, recompute, optimizer, pick({"fp32", "bf16"}), pick({R"({})", R"({"steps": 2, "lazy_state": true})"}));
  Scenario s = parse_scenario(text, "frozen.json");
  s.model.frozen = random_frozen(random, s.model);
  return s;
}

// Names of the tensors in the resident buffers of these categories.
std::set<std::string> tensors_in(const Schedule& s, std::initializer_list<Category> categories) {
  std::set<std::string> names;
  for (const Program& p : s.programs)
    for (const Buffer& b : p.buffers)
      if (b.resident && b.layout.valid() && std::find(categories.begin(), categories.end(), b.category) != categories.end())
        for (const TensorSpec& tensor : s.layouts[b.layout.value].tensors) names.insert(tensor.name);
  return names;
}

TEST(Frozen, AnySetInAnyFormMakesASoundSchedule) {
  const std::string split = csv("split_frozen.csv", "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n");
  const std::string chunks = csv("chunks_frozen.csv", "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n");
  const std::vector<Form> forms = {{R"({"pp": 1, "dp": 2})", R"({"order": "gpipe"})"},
                                   {R"({"pp": 2, "dp": 2})", R"({"order": "1f1b"})"},
                                   {R"({"pp": 4, "dp": 1})", R"({"order": "gpipe", "p2p": "grouped"})"},
                                   {R"({"pp": 2, "dp": 3})", R"({"order": "1f1b", "p2p": "one_lane", "metadata": true})"},
                                   {R"({"pp": 2, "dp": 2})", R"({"order": "gpipe"})", R"({"form": "bmtrain", "micro_batches": 4})"},
                                   {R"({"pp": 2, "dp": 1})", split.c_str()},
                                   {R"({"pp": 2, "dp": 2})", chunks.c_str()}};
  std::mt19937_64 random(7);
  int compiled = 0;
  while (compiled < 700) {
    const Scenario s = scenario(random, forms[static_cast<std::size_t>(compiled) % forms.size()]);
    std::set<std::string> trained;
    for (const std::string& name : parameter_names(s.model))
      if (std::none_of(s.model.frozen.begin(), s.model.frozen.end(), [&](const auto& pattern) { return matches_name(pattern, name); }))
        trained.insert(name);
    if (trained.empty()) continue;
    ++compiled;
    const auto what = [&] { return fmt::format("{}\n{}", s.canonical_json, fmt::join(s.model.frozen, " ")); };
    const Schedule schedule = compile(s);
    for (const Diagnostic& d : verify(schedule)) ASSERT_NE(d.severity, Severity::Error) << format_diagnostic(d) << what();
    ASSERT_EQ(simulate(schedule, StatedCosts(), nullptr).outcome.status, Status::Ok) << what();
    std::set<std::string> with_gradient = tensors_in(schedule, {Category::Gradient, Category::GradientShard});
    if (s.model.tied && trained.contains("embed.token.weight")) with_gradient.erase("head.weight");
    EXPECT_EQ(with_gradient, trained) << what();
    std::set<std::string> with_state = tensors_in(schedule, {Category::Optimizer});
    with_state.erase("optimizer");  // the loss scale
    if (s.model.tied && trained.contains("embed.token.weight")) with_state.erase("head.weight");
    EXPECT_EQ(with_state, trained) << what();
    std::set<std::string> held = tensors_in(schedule, {Category::Param});
    if (s.model.tied) held.erase("head.weight");
    const std::vector<std::string> all = parameter_names(s.model);
    EXPECT_EQ(held, std::set<std::string>(all.begin(), all.end())) << what();
  }
}

}  // namespace
}  // namespace steptwin
