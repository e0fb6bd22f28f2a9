// scenarios/schema.json (for editors) and the hand-written checks say the same: on the key tables, on all shipped files, and on mutants of
// every value. What the schema accepts and the reader refuses must be a combination, which draft-07 cannot express (specs/ux.md 7).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "schedule/base/error.h"
#include "schedule/json/json_reader.h"
#include "schedule/machine/profile_reader.h"
#include "schedule/model/model.h"
#include "schedule/orders/orders.h"
#include "schedule/scenario.h"
#include "schedule/scenario_keys.h"
#include "tests/support/schema_check.h"

namespace steptwin {
namespace {

using Json = nlohmann::json;

Json load(const std::string& path) { return Json::parse(read_text_file(path), nullptr, true, true); }

const Json& schema() {
  static const Json kSchema = load(SOURCE_DIR "/scenarios/schema.json");
  return kSchema;
}

Json profile_schema() {
  Json out = schema()["definitions"]["machine_profile"];
  out["definitions"] = schema()["definitions"];
  return out;
}

std::set<std::string> names(const Json& object) {
  std::set<std::string> out;
  for (const auto& [key, value] : object.items()) out.insert(key);
  return out;
}

TEST(Schema, ListsTheKeysOfTheReaders) {
  for (const ScenarioSection& section : scenario_sections()) {
    const Json& at = *section.name == '\0' ? schema() : schema()["properties"][section.name];
    EXPECT_EQ(names(at["properties"]), std::set<std::string>(section.keys.begin(), section.keys.end())) << section.name;
  }
}

TEST(Schema, ListsTheNamesOfTheTables) {
  std::set<std::string> models, orders = {"csv"};
  for (const ModelShape& m : model_presets()) models.insert(m.name);
  for (const OrderEntry& o : order_table()) orders.insert(o.name);
  const auto machines = machine_presets();
  const Json& p = schema()["properties"];
  EXPECT_EQ(p["model"]["properties"]["preset"]["enum"].get<std::set<std::string>>(), models);
  EXPECT_EQ(p["schedule"]["properties"]["order"]["enum"].get<std::set<std::string>>(), orders);
  EXPECT_EQ(p["machine"]["properties"]["preset"]["enum"].get<std::set<std::string>>(),
            std::set<std::string>(machines.begin(), machines.end()));
}

// Codes of problems that concern several values, or other files.
bool is_combination(const std::string& code) {
  static const std::set<std::string> kCodes = {"PARTITION", "WARM-UP", "HEADS", "SEQUENCE", "SIZE",   "PRECISION",
                                               "COST",      "NODES",   "FILE",  "ORDER",    "SOURCE", "MESH",
                                               "ZERO",      "RECOMPUTE", "CONFLICT", "PIPELINE", "FROZEN"};
  return kCodes.contains(code);
}

// Both verdicts on one document; complaints about a difference.
void expect_agreement(const Json& document, const std::vector<std::string>& violations,
                      const std::function<void(const std::string&)>& read) {
  const std::string text = document.dump();
  try {
    read(text);
    EXPECT_TRUE(violations.empty()) << "the reader accepts what the schema refuses: " << violations.front() << "\n" << text;
  } catch (const InputError& e) {
    if (!violations.empty()) return;
    for (const Diagnostic& d : e.problems())
      EXPECT_TRUE(is_combination(d.code)) << "the schema accepts: " << format_diagnostic(d) << "\n" << text;
  }
}

void read_as_scenario(const std::string& text) { parse_scenario(text, "mutant.json"); }

void read_as_profile(const std::string& text) {
  JsonProblems problems;
  const JsonDocument document = JsonDocument::parse(text, "mutant.json", problems);
  read_machine(document.root(), problems);
  problems.throw_if_errors();
}

std::vector<Json::json_pointer> all_pointers(const Json& value, const Json::json_pointer& at = Json::json_pointer()) {
  std::vector<Json::json_pointer> out = {at};
  if (!value.is_structured()) return out;
  for (const auto& [key, member] : value.items()) {
    for (const auto& below : all_pointers(member, value.is_array() ? at / std::stoul(key) : at / key)) out.push_back(below);
  }
  return out;
}

// Every bound that the schema states, and a value just beyond it.
void collect_bounds(const Json& at, std::set<double>& out) {
  for (const char* word : {"minimum", "maximum", "exclusiveMinimum"}) {
    if (!at.is_object() || !at.contains(word) || !at[word].is_number()) continue;
    const double bound = at[word].get<double>();
    out.insert({bound, bound == std::floor(bound) ? bound + 1 : bound * 1.001});
  }
  if (!at.is_structured()) return;
  for (const Json& below : at) collect_bounds(below, out);
}

const std::set<double>& bounds() {
  static const std::set<double> kBounds = [] {
    std::set<double> out;
    collect_bounds(schema(), out);
    return out;
  }();
  return kBounds;
}

// A number replaced by every bound.
std::vector<Json> boundary_mutants(const Json& document) {
  std::vector<Json> out;
  for (const auto& pointer : all_pointers(document)) {
    if (!document[pointer].is_number()) continue;
    for (const double bound : bounds()) {
      out.push_back(document);
      out.back()[pointer] = bound;
    }
  }
  return out;
}

// Every value replaced, every key removed, an unknown key in every object.
std::vector<Json> mutants(const Json& document) {
  static const std::vector<Json> kReplacements = {Json("zzz"), Json(-1),   Json(0),       Json(1),       Json(2.5),     Json(3.0),
                                                  Json(1e30),  Json(true), Json(nullptr), Json::array(), Json::object()};
  std::vector<Json> out;
  for (const auto& pointer : all_pointers(document)) {
    for (const Json& replacement : kReplacements) {
      out.push_back(document);
      out.back()[pointer] = replacement;
    }
    if (document[pointer].is_object()) {
      out.push_back(document);
      out.back()[pointer]["zzz"] = 1;
    }
    if (!pointer.empty() && document[pointer.parent_pointer()].is_object()) {
      out.push_back(document);
      out.back()[pointer.parent_pointer()].erase(pointer.back());
    }
  }
  return out;
}

std::vector<Json> examples() {
  std::vector<Json> out;
  for (const char* name : {"gpt2_pp4", "llama3_8b_dp8"}) out.push_back(load(std::string(SOURCE_DIR "/scenarios/") + name + ".json"));
  out.push_back(Json::parse(R"({"$schema": "schema.json", "format": 1, "name": "all",
    "model": {"family": "llama", "layers": 8, "hidden": 512, "heads": 8, "kv_heads": 2, "head_size": 64, "ffn": 1408, "vocabulary": 1000, "positions": 4096,
              "tied": false, "flash_attention": true, "dropout": 0.1, "frozen": ["embed*", "layers.0-3.*"]},
    "mesh": {"pp": 2, "dp": 1, "cp": 1, "ep": 1, "tp": 1, "order": ["pp", "dp"]},
    "batch": {"micro_batches": 2, "micro_batch_size": 1, "sequence_length": 128},
    "schedule": {"order": "1f1b", "p2p": "grouped", "layers_per_stage": [4, 4], "warm_up": [1, 0]},
    "precision": {"compute": "bf16", "master": "fp32", "gradient": "bf16", "reduce": "fp32"},
    "recompute": {"mode": "every", "every": 2, "hidden_states": true},
    "optimizer": {"kind": "adam", "offload": true, "clip": 0.5, "overflow_check": true, "loss_scale": 1024, "loss_scale_factor": 4, "loss_scale_steps": 7},
    "data_parallel": {"reduce": "end", "bucket_mib": 1.5}, "run": {"task": "save", "steps": 2}, "assume": {"overflow": true},
    "machine": {"preset": "cpu", "nodes": 1, "link_sharing": "fair", "device": {"memory_gib": 3, "memory_efficiency": [{"at_least_mb": 0, "efficiency": 0.5}]},
                "intra_node": {"latency_us": 1}, "host": {"compute_slots": 2}}})"));
  out.push_back(Json::parse(
      R"({"format": 1, "model": {"preset": "gpt2", "layers": 4}, "mesh": {"pp": 2}, "batch": {"micro_batches": 2, "sequence_length": 128},
    "schedule": {"order": "gpipe", "backward": "descending"},
    "cost": {"model": "given", "forward_us": [1, 2.5], "input_grad_us": 1, "weight_grad_us": 1, "p2p_us": 0.5, "optimizer_us": [0, 1]}})"));
  return out;
}

TEST(Schema, AgreesWithTheReaderOnScenariosAndTheirMutants) {
  std::size_t count = 0;
  for (const Json& example : examples()) {
    EXPECT_EQ(testing::schema_violations(schema(), example), std::vector<std::string>{});
    for (const Json& mutant : mutants(example)) {
      expect_agreement(mutant, testing::schema_violations(schema(), mutant), read_as_scenario);
      ++count;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(count, 1000u);
}

TEST(Schema, AgreesWithTheReaderOnEveryBound) {
  for (const std::size_t index : {2u, 3u}) {  // the two examples that state nearly every number
    for (const Json& mutant : boundary_mutants(examples()[index])) {
      expect_agreement(mutant, testing::schema_violations(schema(), mutant), read_as_scenario);
      if (HasFailure()) return;
    }
  }
}

TEST(Schema, AcceptsEveryShippedScenarioAndProfile) {
  for (const auto& entry : std::filesystem::directory_iterator(SOURCE_DIR "/scenarios")) {
    if (entry.path().extension() != ".json" || entry.path().stem() == "schema") continue;
    EXPECT_EQ(testing::schema_violations(schema(), load(entry.path().string())), std::vector<std::string>{}) << entry.path();
  }
  for (const std::string& name : machine_presets())
    EXPECT_EQ(testing::schema_violations(profile_schema(), load(machine_preset_path(name))), std::vector<std::string>{}) << name;
}

TEST(Schema, AgreesWithTheReaderOnProfilesAndTheirMutants) {
  const Json whole = profile_schema();
  for (const Json& mutant : mutants(load(machine_preset_path("cpu")))) {
    expect_agreement(mutant, testing::schema_violations(whole, mutant), read_as_profile);
    if (HasFailure()) return;
  }
}

// The refusals of broken files that concern one value are also refused by the schema.
TEST(Schema, RefusesBrokenFilesThatTheReaderRefusesForOneValue) {
  for (const auto& entry : std::filesystem::directory_iterator(TEST_DIR "/golden/broken")) {
    if (entry.path().extension() != ".json") continue;
    const Json document = Json::parse(read_text_file(entry.path().string()), nullptr, false, true);
    if (document.is_discarded()) continue;  // not JSON at all
    try {
      parse_scenario(read_text_file(entry.path().string()), "broken.json");
    } catch (const InputError& e) {
      const std::string& code = e.problems().front().code;
      if (is_combination(code) || code == "DUPLICATE-KEY") continue;
      EXPECT_FALSE(testing::schema_violations(schema(), document).empty()) << entry.path();
    }
  }
}

}  // namespace
}  // namespace steptwin
