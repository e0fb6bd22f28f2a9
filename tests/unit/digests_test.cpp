// Same input, same digests: run after run, in every build type (tests/golden/digests.txt; UPDATE_GOLDEN=1 rewrites it), whatever
// the order of JSON keys, the agenda, and the folding.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/random_schedule.h"
#include "tests/support/rehearsal.h"
#include "tests/support/sample_run.h"

namespace steptwin {
namespace {

using test::Rehearsal;
using test::rehearse;

constexpr const char* kScenarios[] = {"gpt2_pp4", "gpt2_pp4_gpipe", "gpt2_xl_pp4"};
constexpr const char* kGolden = TEST_DIR "/golden/digests.txt";

std::string path_of(const std::string& scenario) { return SOURCE_DIR "/scenarios/" + scenario + ".json"; }

Rehearsal rehearse_file(const std::string& scenario, const std::vector<Override>& overrides = {}, const SimulateOptions& options = {}) {
  return rehearse(load_scenario(path_of(scenario), overrides), options);
}

// name, digests of scenario, schedule and trace, step time
std::string line_of(const std::string& name, const Rehearsal& run) {
  return name + " " + run.scenario.sha256 + " " + run.summary.schedule_digest + " " + run.summary.trace_digest + " " +
         std::to_string(ns(run.summary.step_time)) + "\n";
}

TEST(Digests, AreThoseOfTheGoldenFile) {
  std::string text = "# scenario, sha256 of the resolved scenario, of the schedule, digest of the trace, step time in ns\n";
  for (const char* name : kScenarios) text += line_of(name, rehearse_file(name));
  if (std::getenv("UPDATE_GOLDEN") != nullptr) std::ofstream(kGolden) << text;
  EXPECT_EQ(text, test::read_file(kGolden)) << "intended? then run again with UPDATE_GOLDEN=1";
}

TEST(Digests, AreTheSameTwice) {
  for (const char* name : kScenarios) EXPECT_EQ(line_of(name, rehearse_file(name)), line_of(name, rehearse_file(name)));
}

using Json = nlohmann::ordered_json;

Json shuffled(const Json& value, test::Random& random) {
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(shuffled(item, random));
    return out;
  }
  if (!value.is_object()) return value;
  std::vector<std::string> keys;
  for (const auto& [key, member] : value.items()) keys.push_back(key);
  for (std::size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[random.below(static_cast<std::uint32_t>(i))]);
  Json out = Json::object();
  for (const std::string& key : keys) out[key] = shuffled(value.at(key), random);
  return out;
}

TEST(Digests, DoNotDependOnTheOrderOfKeys) {
  test::Random random(2);
  for (const char* name : kScenarios) {
    const std::string text = test::read_file(path_of(name));
    const Json json = Json::parse(text, nullptr, true, true);
    const Rehearsal original = rehearse_file(name);
    std::size_t changed = 0;
    for (int i = 0; i < 20; ++i) {
      const std::string other = shuffled(json, random).dump(i % 3 == 0 ? 4 : -1);
      changed += other.find("\"format\"") > 20 ? 1 : 0;
      const Scenario scenario = parse_scenario(other, path_of(name));
      ASSERT_EQ(scenario.sha256, original.scenario.sha256) << other;
      if (i < 2) {
        EXPECT_EQ(line_of(name, rehearse(scenario)), line_of(name, original)) << other;
      }
    }
    EXPECT_GT(changed, 5u) << "the keys do move";
  }
}

TEST(Digests, AValueThatMattersChangesThem) {
  const Rehearsal original = rehearse_file("gpt2_pp4");
  EXPECT_NE(rehearse_file("gpt2_pp4", {{"batch.micro_batches", "9"}}).summary.schedule_digest, original.summary.schedule_digest);
  const Rehearsal slower = rehearse_file("gpt2_pp4", {{"machine.intra_node.latency_us", "20"}});
  EXPECT_EQ(slower.summary.schedule_digest, original.summary.schedule_digest) << "the schedule does not know the machine";
  EXPECT_NE(slower.scenario.sha256, original.scenario.sha256);
  EXPECT_NE(slower.summary.trace_digest, original.summary.trace_digest);
}

const std::vector<std::vector<Override>> kVariants = {
    {},
    {{"schedule.p2p", "one_lane"}},
    {{"schedule.p2p", "grouped"}},
    {{"recompute.mode", "full"}},
    {{"mesh.dp", "2"}},
    {{"mesh.dp", "4"}, {"data_parallel.reduce", "end"}},
    {{"machine.host.run_ahead_micro_batches", "1"}},
    {{"run.steps", "3"}},
};

TEST(Digests, ReplayAndEventAgendaAgree) {
  for (const char* name : {"gpt2_pp4", "gpt2_pp4_gpipe"})
    for (const auto& overrides : kVariants) {
      SimulateOptions replay, event;
      replay.engine = EngineChoice::Replay;
      event.engine = EngineChoice::Event;
      replay.steps = event.steps = static_cast<std::uint32_t>(load_scenario(path_of(name), overrides).steps);
      const Rehearsal a = rehearse_file(name, overrides, replay), b = rehearse_file(name, overrides, event);
      EXPECT_EQ(a.trace.engine, "replay");
      EXPECT_EQ(b.trace.engine, "event");
      EXPECT_EQ(a.summary.trace_digest, b.summary.trace_digest) << name << (overrides.empty() ? "" : " " + overrides[0].path);
    }
}

std::map<RankId, std::vector<std::int64_t>> times_by_rank(const Trace& trace) {
  std::map<RankId, std::vector<std::int64_t>> out;
  for (const Span& s : trace.spans)
    for (const SimTime t : {s.issue, s.ready, s.start, s.end}) out[s.rank].push_back(ns(t));
  return out;
}

// Ranks that a folded run leaves out have the times, breakdown and peaks of the rank that stands for them.
TEST(Folding, GivesEveryRankItsOwnTimes) {
  for (const char* dp : {"2", "4"})
    for (const char* order : {"1f1b", "gpipe"}) {
      const std::vector<Override> overrides = {{"mesh.dp", dp}, {"schedule.order", order}};
      SimulateOptions on, off;
      on.fold = FoldChoice::On;
      off.fold = FoldChoice::Off;
      const Rehearsal folded = rehearse_file("gpt2_pp4", overrides, on), all = rehearse_file("gpt2_pp4", overrides, off);
      EXPECT_EQ(folded.trace.simulated.size(), 4u);
      EXPECT_FALSE(folded.trace.approximate_fold);
      ASSERT_EQ(all.trace.simulated.size(), all.scenario.mesh.size());
      EXPECT_EQ(folded.summary.step_time, all.summary.step_time);
      EXPECT_EQ(folded.summary.bubble_fraction, all.summary.bubble_fraction);
      auto stand_ins = times_by_rank(folded.trace), own = times_by_rank(all.trace);
      for (std::uint32_t r = 0; r < all.scenario.mesh.size(); ++r) {
        EXPECT_EQ(stand_ins[folded.trace.stand_in[r]], own[RankId(r)]) << "rank " << r;
        RankRow expected = all.summary.ranks[r];
        expected.stand_in = folded.summary.ranks[r].stand_in;
        EXPECT_EQ(folded.summary.ranks[r], expected) << "rank " << r;
      }
    }
}

}  // namespace
}  // namespace steptwin
