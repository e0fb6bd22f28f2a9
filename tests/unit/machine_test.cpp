// Machine profiles: the shipped ones, their sources, reading and writing.
#include "schedule/machine/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "schedule/base/error.h"
#include "schedule/json/json_reader.h"
#include "schedule/machine/profile_reader.h"

namespace steptwin {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

Machine preset(const std::string& name) { return load_machine(machine_preset_path(name)); }

std::vector<Diagnostic> problems_of(const std::string& text) {
  JsonProblems problems;
  const JsonDocument doc = JsonDocument::parse(text, "m.json", problems);
  read_machine(doc.root(), problems);
  return problems.list();
}

TEST(Machine, ShippedPresetsLoad) {
  const std::vector<std::string> names = machine_presets();
  for (const char* name : {"h200_node", "h100_node", "a100_node", "v100_node", "cpu"}) EXPECT_THAT(names, Contains(name));
  for (const std::string& name : names) {
    const Machine m = preset(name);
    EXPECT_EQ(m.name, name) << "a preset is named as its file";
    EXPECT_EQ(m.device.matrix_peak.size(), 3u);
  }
}

// Every number of a shipped profile has its source beside it.
void expect_sourced(const JsonNode& section) {
  const JsonNode* sources = section.find("sources");
  for (const JsonNode& member : section.items) {
    if (member.key == "format" || member.key == "name" || member.key == "sources") continue;
    if (member.key == "measured") continue;  // a calibration says itself where it comes from
    if (member.type == JsonType::Object && member.key != "matrix_peak_tflops") {
      expect_sourced(member);
      continue;
    }
    ASSERT_NE(sources, nullptr) << section.pointer;
    EXPECT_NE(sources->find(member.key), nullptr) << "no source for " << member.pointer;
  }
}

TEST(Machine, EveryFigureOfAPresetHasASource) {
  for (const std::string& name : machine_presets()) {
    JsonProblems problems;
    const JsonDocument doc = JsonDocument::read(machine_preset_path(name), problems);
    expect_sourced(doc.root());
    EXPECT_FALSE(preset(name).sources.empty());
  }
}

TEST(Machine, FiguresOfH200) {
  const Machine m = preset("h200_node");
  EXPECT_EQ(m.devices_per_node, 8);
  EXPECT_DOUBLE_EQ(m.device.matrix_peak.at(DType::Bf16).value, 989e12);
  EXPECT_DOUBLE_EQ(m.device.memory_bandwidth.value, 4.8e12);
  EXPECT_DOUBLE_EQ(m.intra_node.bandwidth.value, 450e9);
  EXPECT_DOUBLE_EQ(m.inter_node.bandwidth.value, 50e9);
  EXPECT_EQ(ns(m.host.kernel_launch), 9900);
  // specs/execution.md 0.2: pinned copies at 55.5 and 55.3 GB/s
  EXPECT_NEAR(m.copy_up.bandwidth.value * m.copy_up.efficiency, 55.5e9, 0.1e9);
  EXPECT_NEAR(m.copy_down.bandwidth.value * m.copy_down.efficiency, 55.3e9, 0.1e9);
  // llama3-8b with bf16 gradients keeps 16 bytes for each of its 8,030,261,248 parameters
  EXPECT_GT(m.device.memory.value, 16 * std::int64_t{8030261248});
  EXPECT_LT(m.device.memory.value, std::int64_t{150109880320}) << "what the driver reports in all";
  EXPECT_FALSE(m.nodes.has_value());
  EXPECT_EQ(m.node_of(7), 0);
  EXPECT_EQ(m.node_of(8), 1);
}

TEST(Machine, CurvesAreSteps) {
  EfficiencyCurve curve{{{0, 0.1}, {10, 0.5}, {100, 0.9}}};
  EXPECT_EQ(curve.at(0), 0.1);
  EXPECT_EQ(curve.at(9.99), 0.1);
  EXPECT_EQ(curve.at(10), 0.5);
  EXPECT_EQ(curve.at(1e9), 0.9);
  EXPECT_EQ(EfficiencyCurve{}.at(5), 1);
}

TEST(Machine, WritingAndReadingGivesTheSameText) {
  for (const std::string& name : machine_presets()) {
    const std::string text = machine_to_json(preset(name));
    JsonProblems problems;
    const JsonDocument doc = JsonDocument::parse(text, "m.json", problems);
    const Machine again = read_machine(doc.root(), problems);
    EXPECT_TRUE(problems.empty()) << format_diagnostic(problems.list().at(0));
    EXPECT_EQ(machine_to_json(again), text);
    EXPECT_EQ(again.device.memory.value, preset(name).device.memory.value);
  }
  EXPECT_THAT(machine_to_json(preset("h200_node")), HasSubstr("\"memory_gib\": 139.28,")) << "without the noise of bytes in binary";
}

TEST(Machine, UnknownPresetNamesTheNearest) {
  try {
    machine_preset_path("h200-node");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_THAT(e.problems()[0].help, HasSubstr("did you mean \"h200_node\"?"));
  }
}

TEST(Machine, SharedIssuingThreadsAreRefused) {
  const auto problems = problems_of("{\"host\": {\n\"ranks_per_thread\": 2, \"pinned_memory_gib\": 1, \"pageable_memory_gib\": 1}}");
  const auto it = std::find_if(problems.begin(), problems.end(), [](const Diagnostic& d) { return d.code == "UNSUPPORTED"; });
  ASSERT_NE(it, problems.end());
  EXPECT_EQ(it->text, "2 ranks on one issuing thread cannot be simulated yet");
  EXPECT_EQ(it->place.line, 2);
}

TEST(Machine, BadFiguresAreNamedWithPlaceAndRemedy) {
  std::string text = machine_to_json(preset("cpu"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return problems_of(changed);
  };
  EXPECT_THAT(with("\"memory_gib\"", "\"memory\"").at(0).help, HasSubstr("write \"memory_gib\""));
  EXPECT_EQ(with("\"bandwidth_gb_per_s\": 4.0", "\"bandwidth_gb_per_s\": 0").at(0).code, "RANGE");
  EXPECT_EQ(with("\"at_least_gflop\": 0.01", "\"at_least_gflop\": 0.0").at(0).code, "ORDER");
  EXPECT_EQ(with("\"link_sharing\": \"none\"", "\"link_sharing\": \"fare\"").at(0).code, "UNKNOWN-VALUE");
  EXPECT_EQ(with("\"efficiency\": 0.8", "\"efficiency\": 1.5").at(0).code, "RANGE");
  EXPECT_EQ(problems_of("[]").at(0).text, "this value must be an object, not a list");
  EXPECT_EQ(problems_of("{}").size(), 8u);
}

}  // namespace
}  // namespace steptwin
