// A checkpoint save (schedule/save.h), executed: the host memory of the rank that saves holds every parameter as the seed draws it.
#include "schedule/save.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "exec/cpu/execution.h"
#include "schedule/compile.h"
#include "schedule/ir/liveness.h"
#include "schedule/ir/verify.h"

namespace steptwin {
namespace {

struct SaveCase {
  const char* zero;
  int pp = 1, dp = 1;
  const char *compute = "fp32", *tied = "true", *pipeline = "{}", *model = "\"dropout\": 0";
};
void PrintTo(const SaveCase& c, std::ostream* out) {
  *out << fmt::format("zero {} pp{} dp{} {} tied {} pipeline {} {}", c.zero, c.pp, c.dp, c.compute, c.tied, c.pipeline, c.model);
}

Scenario scenario_of(const SaveCase& c) {
  return parse_scenario(
      fmt::format(R"({{"format": 1, "model": {{"family": "gpt", "positions": 32, "layers": 4, "hidden": 60, "heads": 4, "vocabulary": 97,
 "tied": {}, {}}}, "mesh": {{"pp": {}, "dp": {}}}, "batch": {{"micro_batches": 1, "micro_batch_size": 2, "sequence_length": 16}},
 "zero": {}, "pipeline": {},
 "precision": {{"compute": "{}"}}, "run": {{"task": "save"}}, "machine": {{"preset": "cpu"}}}})",
                  c.tied, c.model, c.pp, c.dp, c.zero, c.pipeline, c.compute),
      "save.json");
}

class Save : public testing::TestWithParam<SaveCase> {};

// Compares what a rank has in its saved buffers; the names of the tensors.
std::set<std::string> expect_initial_values(const Schedule& schedule, const Program& program, const RankMemory& memory,
                                            std::uint64_t seed) {
  std::set<std::string> names;
  for (std::uint32_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.space != Space::Pageable || !schedule.name(buffer.name).starts_with(kSavedPrefix)) continue;
    const std::byte* const saved = memory.resident(b);
    EXPECT_NE(saved, nullptr) << schedule.name(buffer.name);
    for (const TensorSpec& tensor : schedule.layouts[buffer.layout.value].tensors) {
      if (saved == nullptr) continue;
      const auto bytes = static_cast<std::size_t>(tensor.bytes().value);
      std::vector<std::byte> drawn(bytes);
      initialise_parameter(tensor.name, tensor, drawn.data(), seed);
      EXPECT_EQ(std::memcmp(saved + tensor.offset.value, drawn.data(), bytes), 0) << tensor.name;
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name << " twice";
    }
  }
  return names;
}

std::set<std::string> names_of_parameters(const ModelShape& model) {
  std::vector<Parameter> all = embedding_parameters(model);
  const auto add = [&](const std::vector<Parameter>& more) { all.insert(all.end(), more.begin(), more.end()); };
  for (std::int64_t layer = 0; layer < model.layers; ++layer) add(attention_parameters(model, layer)), add(mlp_parameters(model, layer));
  add(head_parameters(model));
  std::set<std::string> names;
  for (const Parameter& parameter : all)
    if (!parameter.tied) names.insert(parameter.name);
  return names;
}

void expect_predicted_memory(const Schedule& schedule, const ExecutionResult& result) {
  for (std::size_t i = 0; i < result.trace.simulated.size(); ++i)
    for (const Space space : {Space::Device, Space::Pageable}) {
      const Program& program = schedule.programs[schedule.program_of_rank()[result.trace.simulated[i].value].value];
      std::vector<std::int64_t> predicted;
      for (const Bytes bytes : allocated_curve(schedule, program, space, Repetition::First)) predicted.push_back(bytes.value);
      EXPECT_EQ(result.allocated[static_cast<std::size_t>(space)][i], predicted);
    }
}

TEST_P(Save, LeavesTheInitialParametersInHostMemory) {
  const Scenario scenario = scenario_of(GetParam());
  const Schedule schedule = compile(scenario);
  ASSERT_TRUE(verify(schedule).empty());
  for (const ExecutionMode mode : {ExecutionMode::Interp, ExecutionMode::Threads})
    for (const std::uint32_t steps : {1u, 2u}) {
      ExecuteOptions options;
      options.mode = mode, options.steps = steps, options.seed = 7;
      options.text.assign(100, std::uint8_t{'a'});
      options.deadline = std::chrono::minutes(1);
      Execution execution(schedule, options);
      const ExecutionResult result = execution.run();
      EXPECT_EQ(result.trace.outcome.status, Status::Ok);
      EXPECT_TRUE(result.losses.empty());
      expect_predicted_memory(schedule, result);
      const std::vector<RankMemory>& memories = execution.memories();
      ASSERT_EQ(memories.size(), schedule.mesh.size());
      for (const RankMemory& memory : memories) {
        const Program& program = schedule.programs[schedule.program_of_rank()[memory.rank().value].value];
        const std::set<std::string> names = expect_initial_values(schedule, program, memory, options.seed);
        EXPECT_EQ(names, memory.rank() == RankId(0) ? names_of_parameters(scenario.model) : std::set<std::string>());
      }
    }
}

constexpr const char *kLevel3 = R"({"level": 3})", *kBmtrain = R"({"form": "bmtrain"})",
                     *kFrozen = R"("frozen": ["layers.*.attn.*", "embed.position.weight"])", *kShared = R"("layers_per_block": 2)";
INSTANTIATE_TEST_SUITE_P(
    all, Save,
    testing::Values(SaveCase{R"({"level": 0})"}, SaveCase{R"({"level": 0})", 4, 2, "bf16"},
                    SaveCase{R"({"level": 0})", 2, 1, "fp32", "false"}, SaveCase{R"({"level": 1})", 2, 3},
                    SaveCase{R"({"level": 2})", 1, 2, "fp16"}, SaveCase{kLevel3, 1, 3, "bf16"}, SaveCase{kLevel3, 2, 2},
                    SaveCase{kLevel3, 2, 3, "bf16", "false"}, SaveCase{kLevel3, 4, 1}, SaveCase{R"({"level": 3, "ends": "whole"})", 2, 2},
                    SaveCase{R"({"level": 3, "shard_ranks": 2})", 1, 4, "bf16"}, SaveCase{R"({"level": 3, "form": "fsdp"})", 1, 3},
                    SaveCase{R"({"level": 3, "form": "deepspeed", "param_persistence_threshold": 100})", 2, 3, "bf16"},
                    SaveCase{kLevel3, 2, 2, "bf16", "true", kBmtrain}, SaveCase{kLevel3, 4, 3, "fp32", "false", kBmtrain},
                    SaveCase{R"({"level": 3, "ends": "whole"})", 2, 2, "fp32", "true", kBmtrain},
                    SaveCase{kLevel3, 2, 3, "bf16", "true", "{}", kFrozen},
                    SaveCase{R"({"level": 0})", 2, 1, "fp32", "true", "{}", kFrozen},
                    SaveCase{R"({"level": 2})", 2, 2, "bf16", "true", kBmtrain, kFrozen},
                    SaveCase{kLevel3, 2, 3, "bf16", "true", "{}", kShared},
                    SaveCase{R"({"level": 1})", 2, 2, "fp32", "true", kBmtrain, kShared}),
    [](const auto& c) { return fmt::format("case{}", c.index); });

}  // namespace
}  // namespace steptwin
