// Scenario files: defaults, overrides, cross-field checks, digests. DESIGN 8, specs/ux.md 2.7, 4.
#include "schedule/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kBase = R"({
  "format": 1, "name": "t",
  "model": {"preset": "gpt2"},
  "mesh": {"pp": 4},
  "batch": {"micro_batches": 8, "micro_batch_size": 4, "sequence_length": 1024},
  "machine": {"preset": "h200_node"}
})";

const std::string kGiven = R"({
  "format": 1, "model": {"preset": "gpt2"}, "mesh": {"pp": 4},
  "batch": {"micro_batches": 8, "sequence_length": 1024},
  "cost": {"model": "given", "forward_us": 18522, "input_grad_us": [18086, 18086.5, 1, 2], "weight_grad_us": 9337, "p2p_us": 601, "optimizer_us": 0}
})";

Scenario parse(const std::string& text, const std::vector<Override>& overrides = {}) { return parse_scenario(text, "t.json", overrides); }

std::vector<Diagnostic> problems(const std::string& text, const std::vector<Override>& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const InputError& e) {
    return e.problems();
  }
  ADD_FAILURE() << "accepted";
  return {{}};
}

Diagnostic problem(const std::vector<Override>& overrides, const std::string& text = kBase) {
  const std::vector<Diagnostic> all = problems(text, overrides);
  EXPECT_EQ(all.size(), 1u);
  return all.front();
}

TEST(Scenario, DefaultsAreThoseOfTheDesign) {
  const Scenario s = parse(kBase);
  EXPECT_EQ(s.model.name, "gpt2");
  EXPECT_EQ(s.mesh.size(), 4u);
  ASSERT_EQ(s.mesh.axes.size(), 5u);
  EXPECT_EQ(s.mesh.axes[0].name, "pp");
  EXPECT_EQ(s.mesh.axes[4].name, "tp");
  EXPECT_EQ(s.order, "1f1b");
  EXPECT_EQ(s.p2p, P2pMode::Lanes);
  EXPECT_EQ(s.compute, DType::Bf16);
  EXPECT_EQ(s.gradient, DType::Fp32);
  EXPECT_EQ(s.optimizer, OptimizerKind::Adam);
  EXPECT_EQ(s.bucket_bytes.value, 25 << 20);
  EXPECT_EQ(s.nodes, 1);
  EXPECT_EQ(s.steps, 1);
  ASSERT_TRUE(s.machine);
  EXPECT_FALSE(s.given);
  EXPECT_TRUE(s.notes.empty());
}

TEST(Scenario, EveryShippedScenarioLoads) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SOURCE_DIR "/scenarios")) {
    if (entry.path().extension() != ".json" || entry.path().stem() == "schema") continue;
    const Scenario s = load_scenario(entry.path().string());
    EXPECT_EQ(s.name, entry.path().stem().string());
    ++count;
  }
  EXPECT_GE(count, 5);
}

TEST(Scenario, NodesFollowFromTheMesh) {
  EXPECT_EQ(load_scenario(SOURCE_DIR "/scenarios/llama3_405b.json").nodes, 256);
  EXPECT_EQ(parse(kBase, {{"mesh.dp", "3"}}).nodes, 2);
  EXPECT_EQ(parse(kBase, {{"machine.nodes", "7"}}).nodes, 7);
  EXPECT_EQ(problem({{"mesh.dp", "8"}, {"machine.nodes", "3"}}).code, "NODES");
}

TEST(Scenario, GivenTimesAreExactNanosecondsPerStage) {
  const Scenario s = parse(kGiven);
  ASSERT_TRUE(s.given);
  EXPECT_FALSE(s.machine);
  EXPECT_THAT(s.given->forward, ElementsAre(Duration(18522000), Duration(18522000), Duration(18522000), Duration(18522000)));
  EXPECT_THAT(s.given->input_grad, ElementsAre(Duration(18086000), Duration(18086500), Duration(1000), Duration(2000)));
  EXPECT_EQ(s.given->p2p, Duration(601000));
  EXPECT_THAT(s.given->optimizer, ElementsAre(Duration(0), Duration(0), Duration(0), Duration(0)));
}

TEST(Scenario, MeshOrderIsTheOneStatedNeverTheKeyOrder) {
  const Scenario s = parse(kBase, {{"mesh.order", R"(["dp", "pp"])"}, {"mesh.dp", "2"}});
  EXPECT_EQ(s.mesh.axes[0].name, "dp");
  EXPECT_EQ(s.mesh.axes[1].name, "pp");
  EXPECT_EQ(s.mesh.axes.size(), 5u);
  EXPECT_EQ(problem({{"mesh.order", R"(["dp"])"}}).text, "\"order\" lacks the axis \"pp\", whose size is 4");
}

TEST(Scenario, ExplicitModels) {
  const std::string text = R"({"format": 1, "model": {"family": "llama", "layers": 8, "hidden": 512, "heads": 8, "kv_heads": 2, "ffn": 1408,
    "vocabulary": 1000}, "batch": {"micro_batches": 1, "sequence_length": 128}, "machine": {"preset": "cpu"}})";
  const Scenario s = parse(text);
  EXPECT_EQ(s.model.head_size, 64);
  EXPECT_EQ(s.model.positions, 128) << "a Llama model without a limit takes the sequence";
  EXPECT_FALSE(s.model.tied);
  EXPECT_EQ(problem({{"model.kv_heads", "3"}}, text).code, "HEADS");
  EXPECT_EQ(problem({{"model.heads", "3"}, {"model.kv_heads", "3"}}, text).code, "HEADS");
  EXPECT_THAT(problem({{"model.ffn", "null"}}, text).text, HasSubstr("missing key \"ffn\""));
  EXPECT_THAT(problem({{"model.family", "gpt"}, {"model.kv_heads", "8"}}, text).text, HasSubstr("missing key \"positions\""));
}

TEST(Scenario, PresetsMayBeVariedButNotReshaped) {
  const Scenario s =
      parse(kBase, {{"model.layers", "24"}, {"model.tied", "false"}, {"model.flash_attention", "false"}, {"model.dropout", "0.1"}});
  EXPECT_EQ(s.model.layers, 24);
  EXPECT_FALSE(s.model.tied);
  EXPECT_FALSE(s.model.flash_attention);
  EXPECT_EQ(s.model.dropout, 0.1);
  EXPECT_THAT(problem({{"model.hidden", "512"}}).text, HasSubstr("fixed by the preset gpt2"));
}

TEST(Override, DottedAndPointerPathsAndJsonOrText) {
  EXPECT_EQ(parse(kBase, {{"batch.micro_batches", "16"}}).micro_batches, 16);
  EXPECT_EQ(parse(kBase, {{"/batch/micro_batches", "16"}}).micro_batches, 16);
  EXPECT_EQ(parse(kBase, {{"schedule.order", "gpipe"}}).order, "gpipe") << "a section is made when absent";
  EXPECT_EQ(parse(kBase, {{"schedule.order", "\"gpipe\""}}).order, "gpipe");
  EXPECT_EQ(parse(kBase, {{"recompute.mode", "full"}}).recompute, RecomputeMode::Full);
  EXPECT_EQ(parse(kBase, {{"batch.micro_batches", "16"}, {"batch.micro_batches", "32"}}).micro_batches, 32) << "the later wins";
  EXPECT_EQ(parse(kBase, {{"schedule", R"({"order": "gpipe"})"}}).order, "gpipe");
  EXPECT_EQ(
      parse(kBase, {{"schedule.layers_per_stage", "[4,3,3,2]"}, {"schedule.layers_per_stage.3", "1"}, {"schedule.layers_per_stage.2", "4"}})
          .layers_per_stage[2],
      4);
}

TEST(Override, NullTakesAKeyOut) {
  EXPECT_EQ(parse(kBase, {{"machine", "null"}, {"cost", R"({"model":"given","forward_us":1,"input_grad_us":1,"weight_grad_us":1})"}})
                .given->forward.size(),
            4u);
  EXPECT_EQ(parse(kBase, {{"machine.nodes", "null"}}).nodes, 1);
}

TEST(Override, UnknownPathsSuggestTheRightOne) {
  const Diagnostic near = problem({{"batch.micro_batch", "16"}});
  EXPECT_EQ(near.code, "OVERRIDE");
  EXPECT_EQ(near.place.file, "--set batch.micro_batch=16");
  EXPECT_EQ(near.place.line, 0);
  EXPECT_EQ(near.place.pointer, "/batch/micro_batch");
  EXPECT_EQ(near.help, "did you mean batch.micro_batches?");
  EXPECT_EQ(problem({{"pipelines.microbatches", "16"}}).help, "did you mean pipeline.micro_batches?");
  EXPECT_EQ(problem({{"batches.microbatches", "16"}}).help, "did you mean batch.micro_batches?");
  EXPECT_EQ(problem({{"mesh.dpx", "16"}}).help, "did you mean mesh.dp?");
  EXPECT_EQ(problem({{"", "16"}}).code, "OVERRIDE");
  EXPECT_EQ(problem({{"...", "16"}}).code, "OVERRIDE");
  EXPECT_EQ(problem({{"name.x", "16"}}).code, "OVERRIDE");
  EXPECT_EQ(problem({{"machine.device.memory", "16"}}).help, "write \"memory_gib\"");
}

TEST(Override, WrongTypesPointAtTheOption) {
  for (const Override& change :
       {Override{"batch.micro_batches", "many"}, Override{"batch.micro_batches", "0"}, Override{"name", "7"},
        Override{"schedule.order", "1f1"}, Override{"mesh.pp.x", "2"}, Override{"schedule.layers_per_stage", "3"}}) {
    const Diagnostic d = problem({change});
    EXPECT_EQ(d.code, "OVERRIDE") << d.text;
    EXPECT_EQ(d.place.file, "--set " + change.path + "=" + change.value);
  }
  const Diagnostic cross = problem({{"mesh.pp", "16"}});
  EXPECT_EQ(cross.code, "PARTITION");
  EXPECT_EQ(cross.place.file, "--set mesh.pp=16");
  EXPECT_THAT(cross.help, HasSubstr("\"pp\": 12"));
}

TEST(Override, MachineFiguresMayBeReplaced) {
  const Scenario s =
      parse(kBase, {{"machine.device.memory_gib", "40"}, {"machine.intra_node.latency_us", "0"}, {"machine.link_sharing", "fair"}});
  EXPECT_EQ(s.machine->device.memory.value, std::int64_t{40} << 30);
  EXPECT_EQ(s.machine->intra_node.latency, Duration(0));
  EXPECT_EQ(s.machine->sharing, LinkSharing::Fair);
  EXPECT_EQ(s.machine->sources.count("/device/memory_gib"), 0u) << "the source was that of the replaced figure";
  EXPECT_EQ(s.machine->sources.count("/device/vector_peak_tflops"), 1u);
}

TEST(Checks, ImpossibleCombinations) {
  EXPECT_EQ(problem({{"schedule.layers_per_stage", "[3,3,3,2]"}}).text, "the stages hold 11 layers together, but the model has 12");
  EXPECT_EQ(problem({{"schedule.layers_per_stage", "[6,6]"}}).code, "PARTITION");
  EXPECT_EQ(problem({{"schedule.warm_up", "[1,2]"}}).code, "WARM-UP");
  EXPECT_EQ(problem({{"schedule.warm_up", "[9,2,1,0]"}}).place.pointer, "/schedule/warm_up/0");
  EXPECT_EQ(problem({{"schedule.order", "gpipe"}, {"schedule.warm_up", "[3,2,1,0]"}}).text,
            "\"warm_up\" is for order \"1f1b\", not \"gpipe\"");
  EXPECT_EQ(problem({{"batch.sequence_length", "2048"}}).code, "SEQUENCE");
  EXPECT_EQ(problem({{"mesh.tp", "2"}}).text, "\"tp\" is 2, but tensor parallelism is not supported yet");
  EXPECT_EQ(problem({{"zero.level", "4"}}).code, "OVERRIDE");
  EXPECT_EQ(problem({{"zero.form", "block"}}).help, "write \"level\": 2, or remove \"form\"");
  EXPECT_EQ(problem({{"zero.level", "2"}, {"zero.reshard", "false"}}).text, "\"reshard\" says nothing at ZeRO level 2");
  EXPECT_EQ(problem({{"zero.level", "1"}, {"zero.reduce", "micro_batch"}}).code, "ZERO");
  EXPECT_EQ(problem({{"zero.level", "1"}, {"optimizer.kind", "none"}}).code, "ZERO");
  EXPECT_EQ(problem({{"zero.level", "3"}, {"zero.shard_ranks", "4"}, {"mesh.dp", "6"}}).help,
            "write \"shard_ranks\": 3, or remove it to shard over all of dp");
  EXPECT_EQ(problem({{"optimizer", R"({"kind": "none", "overflow_check": true})"}}).help,
            "write \"kind\": \"adam\", or remove \"overflow_check\"");
  EXPECT_EQ(problem({{"optimizer", R"({"kind": "none", "offload": true})"}}).help, "write \"kind\": \"adam\", or remove \"offload\"");
  EXPECT_EQ(problem({{"optimizer", R"({"kind": "none", "clip": 1})"}}).text, "\"clip\" without an optimizer");
  EXPECT_EQ(problem({{"optimizer.clip", "0"}}).code, "OVERRIDE");
  EXPECT_EQ(problem({{"optimizer.loss_scale", "0.5"}}).code, "OVERRIDE");
  EXPECT_EQ(problem({{"optimizer.loss_scale_steps", "9"}}).help, "write \"loss_scale\": 65536, or remove \"loss_scale_steps\"");
  EXPECT_EQ(problem({{"optimizer", R"({"loss_scale": 2, "overflow_check": false})"}}).help,
            "write \"overflow_check\": true, or remove \"loss_scale\"");
  EXPECT_TRUE(parse(kBase, {{"optimizer.loss_scale", "65536"}}).overflow_check);
  EXPECT_EQ(problem({{"recompute.mode", "sqrt"}}).code, "RECOMPUTE") << "over 4 stages";
  EXPECT_EQ(problem({{"recompute", R"({"mode": "every", "every": 13})"}}).help, "write \"every\": 12, which recomputes all layers as one group");
  EXPECT_EQ(problem({{"recompute.every", "2"}}).text, "\"mode\": \"every\" and \"every\" belong together");
  EXPECT_EQ(problem({{"precision.gradient", "fp16"}}).code, "PRECISION");
  EXPECT_EQ(problem({{"schedule.order", "csv"}}).text, "missing key \"csv\" in \"schedule\"");
  EXPECT_EQ(problem({{"mesh.dp", "1048576"}, {"mesh.pp", "12"}}).code, "SIZE");
  EXPECT_EQ(problem({{"batch.micro_batch_size", "1048576"}, {"batch.micro_batches", "1048576"}}).code, "SIZE");
  EXPECT_EQ(problem({{"cost.forward_us", "[1,2]"}}, kGiven).code, "COST");
  EXPECT_EQ(problem({{"cost.forward_us", "1e9"}, {"batch.micro_batches", "1000000"}}, kGiven).code, "SIZE");
}

// specs/bmtrain.md 9.2: (B p) mod M == 0, and what else the form does not go with; each with the nearest legal value.
TEST(Checks, PipelineOfBatches) {
  const auto refused = [](std::vector<Override> overrides, const std::string& base = kBase) {
    overrides.insert(overrides.begin(), {{"pipeline.form", "bmtrain"}});
    return problem(overrides, base);
  };
  const Diagnostic odd = refused({{"pipeline.micro_batches", "5"}});  // 4 stages, batches of 4
  EXPECT_EQ(odd.code, "PIPELINE");
  EXPECT_EQ(odd.text, "5 micro-batches do not divide the 16 samples of 4 stages with a batch of 4 each");
  EXPECT_EQ(odd.help, "write \"micro_batches\": 4");
  EXPECT_EQ(odd.place.pointer, "/pipeline/micro_batches");
  EXPECT_EQ(refused({{"pipeline.micro_batches", "7"}}).help, "write \"micro_batches\": 8");
  EXPECT_EQ(refused({{"pipeline.micro_batches", "100"}}).help, "write \"micro_batches\": 16");
  EXPECT_EQ(refused({{"mesh.pp", "1"}}).help, "write \"pp\": 2, or remove \"pipeline\"");
  EXPECT_EQ(refused({{"schedule.order", "1f1b"}}).help,
            "write \"order\": \"gpipe\", or for BMTrain's 1F1B branch remove \"pipeline\" and write \"enter\": \"step\" in \"zero\"");
  EXPECT_EQ(refused({{"zero.level", "3"}, {"zero.reshard", "true"}}).help, "write \"reshard\": false");
  EXPECT_EQ(refused({{"recompute.mode", "sqrt"}}).code, "RECOMPUTE");
  EXPECT_EQ(problem({{"pipeline.micro_batches", "4"}}).help, "write \"form\": \"bmtrain\" beside it, or use batch.micro_batches");
  EXPECT_EQ(problem({{"schedule.p2p", "grouped"}, {"schedule.metadata", "true"}}).help,
            "write \"p2p\": \"lanes\", or remove \"metadata\"");
  EXPECT_EQ(refused({}, kGiven).text, "times of whole stages do not say what embedding and head cost on every rank");
}

TEST(Checks, PipelineOfBatchesSetsDefaults) {
  const Scenario s = parse(kBase, {{"pipeline.form", "bmtrain"}, {"zero.level", "3"}});
  EXPECT_EQ(s.pipeline.micro_batches, 4);
  EXPECT_EQ(s.order, "gpipe");
  EXPECT_EQ(s.p2p, P2pMode::Compute);
  EXPECT_FALSE(s.zero.reshard);
  EXPECT_EQ(parse(kBase, {{"schedule.order", "gpipe"}, {"pipeline.form", "bmtrain"}, {"schedule.p2p", "lanes"}}).p2p, P2pMode::Lanes);
  EXPECT_EQ(parse(kBase, {{"pipeline.form", "stages"}}).sha256, parse(kBase).sha256) << "the default changes no digest";
}

TEST(Checks, MachineAndCostExcludeEachOther) {
  EXPECT_THAT(problem({{"machine.preset", "cpu"}}, kGiven).text, HasSubstr("both say"));
  const Diagnostic none = problem({{"cost", "null"}}, kGiven);
  EXPECT_THAT(none.text, HasSubstr("missing key \"machine\""));
  EXPECT_THAT(none.help, HasSubstr("h200_node"));
  EXPECT_EQ(problem({{"machine.profile", "x.json"}}).text, "\"preset\" and \"profile\" both say which machine");
}

TEST(Checks, NotesAreNoErrors) {
  const Scenario few = parse(kBase, {{"batch.micro_batches", "2"}});
  ASSERT_EQ(few.notes.size(), 1u);
  EXPECT_EQ(few.notes[0].severity, Severity::Warning);
  EXPECT_THAT(few.notes[0].text, HasSubstr("PyTorch would refuse"));
  EXPECT_EQ(parse(kBase, {{"schedule.order", "gpipe"}}).notes.size(), 1u);
  EXPECT_EQ(parse(kBase, {{"schedule.order", "gpipe"}, {"batch.micro_batches", "16"}}).notes.size(), 0u);
}

TEST(Checks, AllProblemsAtOnceInFileOrder) {
  const std::vector<Diagnostic> all = problems(R"({
  "format": 2,
  "model": {"preset": "gpt3"},
  "mesh": {"pp": 0, "dpp": 2},
  "batch": {"micro_batches": "8", "sequence_length": 1024},
  "schedule": {"order": "zbh1"},
  "machine": {"preset": "h200"}
})");
  ASSERT_EQ(all.size(), 7u);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1].place.line, all[i].place.line);
}

// Found by fuzzing: a misspelt section is reported once, as unknown; checks must then not look at what was not read.
TEST(Checks, AMisspeltSectionIsNotAlsoMissing) {
  std::string text = kBase;
  text.replace(text.find("\"model\""), 7, "\"modle\"");
  const std::vector<Diagnostic> all = problems(text);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].code, "UNKNOWN-KEY");
  EXPECT_THAT(all[0].help, HasSubstr("did you mean \"model\"?"));
}

TEST(Digest, DoesNotDependOnKeyOrderFormattingOrComments) {
  const std::string shuffled = R"(// comment
{"machine":{"preset":"h200_node"},"batch":{"sequence_length":1.024e3,"micro_batch_size":4,"micro_batches":8.0},
 "mesh":{"tp":1,"pp":4},"name":"t","model":{"preset":"gpt2"},"format":1,"zero":{"level":0}})";
  const Scenario a = parse(kBase), b = parse_scenario(shuffled, "elsewhere/x.json");
  EXPECT_EQ(a.canonical_json, b.canonical_json);
  EXPECT_EQ(a.sha256, b.sha256);
  EXPECT_EQ(a.sha256.size(), 64u);
  EXPECT_NE(a.sha256, parse(kBase, {{"run.steps", "2"}}).sha256);
  EXPECT_NE(a.sha256, parse(kBase, {{"machine.device.memory_gib", "40"}}).sha256);
}

TEST(Digest, AScenarioOfItsResolvedModelIsTheSame) {
  const Scenario s = parse(kBase);
  const Scenario again =
      parse(kBase, {{"model", R"({"family":"gpt","layers":12,"hidden":768,"heads":12,"vocabulary":50257,"positions":1024})"}});
  EXPECT_EQ(again.model.name, "custom");
  ModelShape renamed = again.model;
  renamed.name = "gpt2";
  EXPECT_EQ(renamed, s.model);
}

std::string origin(const Scenario& s, const std::string& path) {
  for (const ResolvedValue& v : s.resolved) {
    if (v.path == path) return v.value + " " + v.origin;
  }
  return "absent";
}

TEST(Resolved, EachValueKnowsItsOrigin) {
  const Scenario s = parse(kBase, {{"mesh.dp", "2"}, {"machine.device.memory_gib", "40"}});
  EXPECT_EQ(origin(s, "batch.micro_batches"), "8 t.json:5");
  EXPECT_EQ(origin(s, "mesh.dp"), "2 --set");
  EXPECT_EQ(origin(s, "mesh.tp"), "1 default");
  EXPECT_EQ(origin(s, "model.layers"), "12 preset gpt2");
  EXPECT_EQ(origin(s, "machine.device.memory_gib"), "40.0 --set");
  EXPECT_EQ(origin(s, "machine.devices_per_node"), "8 preset h200_node");
  EXPECT_EQ(origin(s, "machine.nodes"), "1 default");
  EXPECT_THAT(resolved_listing(s), HasSubstr("batch.micro_batches "));
  EXPECT_THAT(resolved_listing(s), HasSubstr("preset gpt2\n"));
}

TEST(Resolved, AFormOfZeroStatesItsOwnKeys) {
  const Scenario deepspeed = parse(kBase, {{"zero", R"({"level": 3, "form": "deepspeed", "max_reuse_distance": 1e6})"}});
  EXPECT_EQ(origin(deepspeed, "zero.form"), "\"deepspeed\" --set");
  EXPECT_EQ(origin(deepspeed, "zero.max_reuse_distance"), "1000000 --set");
  EXPECT_EQ(origin(deepspeed, "zero.prefetch_bucket_size"), "50000000 default");
  EXPECT_EQ(origin(deepspeed, "zero.max_live_parameters"), "1000000000 default");
  EXPECT_EQ(origin(deepspeed, "zero.param_persistence_threshold"), "100000 default");
  EXPECT_EQ(origin(deepspeed, "zero.reduce_bucket_size"), "500000000 default");
  EXPECT_EQ(origin(deepspeed, "zero.overlap_comm"), "true default");
  for (const char* key : {"prefetch", "reshard", "reduce", "ends"}) EXPECT_EQ(origin(deepspeed, std::string("zero.") + key), "absent");
  const Scenario list = parse(kBase, {{"zero", R"({"level": 3})"}});
  EXPECT_EQ(origin(list, "zero.prefetch"), "1 default");
  EXPECT_EQ(origin(list, "zero.reduce_bucket_size"), "absent");
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("steptwin_scenario_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::filesystem::path folder_;
};

TEST_F(Files, PathsStartAtTheScenarioAndItsContentCounts) {
  write("order.csv", "0F0\n");
  std::string text = kBase;
  text.insert(text.rfind('}'), R"(, "schedule": {"order": "csv", "csv": "order.csv"})");
  const std::string path = write("s.json", text);
  const Scenario s = load_scenario(path);
  EXPECT_EQ(s.order_csv, (folder_ / "order.csv").string());
  write("order.csv", "0F1\n");
  EXPECT_NE(load_scenario(path).sha256, s.sha256);
  std::filesystem::remove(folder_ / "order.csv");
  try {
    load_scenario(path);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_THAT(e.problems()[0].text, HasSubstr("No such file"));
    EXPECT_EQ(e.problems()[0].place.pointer, "/schedule/csv");
  }
}

TEST_F(Files, AProfileOfOnesOwn) {
  std::ifstream preset(SOURCE_DIR "/scenarios/machines/cpu.json");
  std::string profile((std::istreambuf_iterator<char>(preset)), {});
  write("mine.json", profile);
  std::string text = kBase;
  text.replace(text.find("\"preset\": \"h200_node\""), 21, "\"profile\": \"mine.json\"");
  const Scenario s = load_scenario(write("s.json", text));
  EXPECT_EQ(s.machine->host.compute_slots, 1);
  profile.replace(profile.find("\"memory_gib\": 2"), 15, "\"memory_gib\": -2");
  write("mine.json", profile);
  try {
    load_scenario((folder_ / "s.json").string());
    FAIL();
  } catch (const InputError& e) {
    EXPECT_EQ(e.problems()[0].place.file, (folder_ / "mine.json").string()) << "a problem in the profile points into the profile";
    EXPECT_GT(e.problems()[0].place.line, 1);
  }
}

TEST_F(Files, UnreadableScenarios) {
  EXPECT_THROW(load_scenario((folder_ / "none.json").string()), EnvironmentError);
  EXPECT_THROW(load_scenario(folder_.string()), EnvironmentError);
}

}  // namespace
}  // namespace steptwin
