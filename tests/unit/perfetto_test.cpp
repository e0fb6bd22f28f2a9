// The Perfetto file as a viewer would read it (own decoder, tests/support/perfetto_decoder.h).
#include "traces/perfetto.h"

#include <gtest/gtest.h>

#include <set>

#include "analysis/export_perfetto.h"
#include "schedule/base/error.h"
#include "schedule/ir/builder.h"
#include "tests/support/perfetto_decoder.h"
#include "tests/support/sample_run.h"

namespace steptwin {
namespace {

using test::decode_perfetto;
using test::DecodedTrace;

struct Exported {
  DecodedTrace trace;
  PerfettoResult result;
};

Exported export_sample(const test::SampleRun& run, const PerfettoExport& options = {}) {
  const test::TemporaryFolder folder;
  Store store(folder.file("a.db"), Store::Access::ReadWrite);
  const auto key = store.begin_run(test::sample_info());
  store.finish_run(key, run.schedule, run.digest, run.trace, {});
  std::string file;
  const PerfettoResult result = export_perfetto(
      store, key.id, [&](std::string_view part) { file += part; }, options);
  return {decode_perfetto(file), result};
}

std::string place(const DecodedTrace& trace, std::uint64_t track) {
  const auto* lane = trace.track(track);
  return trace.track(lane->parent)->name + " / " + lane->name;
}

TEST(Perfetto, SampleDecodesWithoutProblems) {
  const auto [trace, result] = export_sample(test::pipeline_sample());
  EXPECT_EQ(trace.problems, std::vector<std::string>{});
  EXPECT_EQ(trace.slices.size(), 18u);
  EXPECT_EQ(result.slices, 18u);
  EXPECT_TRUE(result.warnings.empty());
  for (const auto& slice : trace.slices) EXPECT_EQ(slice.depth, 0u) << slice.name;
}

TEST(Perfetto, SlicesCarryNamesTimesAndAnnotations) {
  const auto [trace, result] = export_sample(test::pipeline_sample());
  const auto found = std::find_if(trace.slices.begin(), trace.slices.end(), [&](const auto& s) {
    return s.name == "B 1" && place(trace, s.track) == "rank 1 · pp1 dp0 · stage 1 / 0 compute";
  });
  ASSERT_NE(found, trace.slices.end());
  EXPECT_EQ(found->start_ns, 52);
  EXPECT_EQ(found->end_ns, 72);
  EXPECT_EQ(found->numbers.at("stage"), 1);
  EXPECT_EQ(found->numbers.at("micro_batch"), 1);
  EXPECT_EQ(found->numbers.at("layer"), 0);
  EXPECT_EQ(found->numbers.at("op"), 15);
  EXPECT_EQ(found->texts.at("segment"), "stage");
  EXPECT_FALSE(found->numbers.contains("bytes"));
}

// Both directions: rank 0 is written first, also where it receives.
TEST(Perfetto, ArrowsJoinEachSendToItsRecv) {
  const auto [trace, result] = export_sample(test::pipeline_sample());
  std::set<std::string> arrows;
  for (const auto& [from, to] : trace.flows) {
    const auto& a = trace.slices[from];
    const auto& b = trace.slices[to];
    EXPECT_EQ(a.start_ns, b.start_ns);
    arrows.insert(a.name + "@" + trace.track(trace.track(a.track)->parent)->name.substr(0, 6) + " -> " + b.name + "@" +
                  trace.track(trace.track(b.track)->parent)->name.substr(0, 6));
  }
  EXPECT_EQ(arrows, (std::set<std::string>{"send 0@rank 0 -> recv 0@rank 1", "send 1@rank 0 -> recv 1@rank 1",
                                           "send 0@rank 1 -> recv 0@rank 0", "send 1@rank 1 -> recv 1@rank 0"}));
  EXPECT_EQ(result.flows, 4u);
}

TEST(Perfetto, ArrowsOfMessagesThatTakeNoTime) {
  test::SampleRun run = test::pipeline_sample();
  for (Span& span : run.trace.spans)
    if (is_point_to_point(run.schedule.ops[span.op.value].body)) span.end = span.start;
  const auto [trace, result] = export_sample(run);
  EXPECT_EQ(trace.problems, std::vector<std::string>{});
  EXPECT_EQ(trace.flows.size(), 4u);
}

TEST(Perfetto, RanksAndLanesAreInNumericOrder) {
  test::SampleRun run = test::large_sample(12, 9);
  const auto [trace, result] = export_sample(run);
  EXPECT_EQ(trace.problems, std::vector<std::string>{});
  EXPECT_TRUE(trace.explicit_processes);
  EXPECT_TRUE(trace.explicit_threads);
  std::vector<std::string> by_name;
  for (const auto& track : trace.tracks) {
    if (track.is_process) {
      EXPECT_EQ(track.order, static_cast<std::int64_t>(by_name.size()));
      EXPECT_EQ(track.pid, track.order + 1);
      by_name.push_back(track.name);
    }
    if (!track.is_thread) continue;
    EXPECT_EQ(track.name.substr(0, 1), std::to_string(track.order));
    EXPECT_TRUE(trace.track(track.parent)->is_process);
    EXPECT_EQ(track.pid, trace.track(track.parent)->pid);
  }
  ASSERT_EQ(by_name.size(), 12u);
  EXPECT_EQ(by_name[2], "rank 02 · pp2 · stage 2");
  EXPECT_TRUE(std::is_sorted(by_name.begin(), by_name.end())) << "names sort too, for viewers that ignore the order";
}

TEST(Perfetto, MemoryCurvesAreCounters) {
  const auto [trace, result] = export_sample(test::pipeline_sample());
  std::map<std::string, std::vector<std::pair<std::int64_t, std::int64_t>>> by_name;
  for (const auto& [uuid, values] : trace.counters) {
    const auto* track = trace.track(uuid);
    EXPECT_TRUE(track->is_counter);
    EXPECT_EQ(track->counter_unit, 3) << "bytes";
    by_name[trace.track(track->parent)->name.substr(0, 6) + " " + track->name] = values;
  }
  EXPECT_EQ(by_name.size(), 4u);
  EXPECT_EQ(by_name.at("rank 0 device allocated total"),
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 100}, {10, 500}, {94, 100}}));
  EXPECT_EQ(by_name.at("rank 1 device allocated activation"),
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {10, 200}, {94, 0}}));
}

TEST(Perfetto, FoldedRunShowsStandInsOrTheRanksAskedFor) {
  const test::SampleRun run = test::folded_sample(4);
  const Exported standard = export_sample(run);
  EXPECT_EQ(standard.result.ranks, (std::vector<RankId>{RankId(0), RankId(4)}));
  EXPECT_EQ(standard.trace.flows.size(), 4u);
  const Exported chosen = export_sample(run, {{RankId(6), RankId(2)}});  // dp 2, by the spans of dp 0
  EXPECT_EQ(chosen.trace.problems, std::vector<std::string>{});
  EXPECT_EQ(chosen.trace.slices.size(), 18u);
  EXPECT_EQ(chosen.trace.flows.size(), 4u);
  const Exported strangers = export_sample(run, {{RankId(6), RankId(1)}});  // dp 2 and dp 1 exchange nothing
  EXPECT_EQ(strangers.trace.problems, std::vector<std::string>{});
  EXPECT_EQ(strangers.trace.flows.size(), 0u);
  EXPECT_THROW(export_sample(run, {{RankId(8)}}), InputError);
}

TEST(Perfetto, MoreThan256RanksAreCutWithAWarning) {
  const auto [trace, result] = export_sample(test::large_sample(300, 3));
  EXPECT_EQ(result.ranks.size(), kDefaultRanks);
  ASSERT_EQ(result.warnings.size(), 1u);
  EXPECT_NE(result.warnings[0].find("256 of 300"), std::string::npos);
  EXPECT_EQ(trace.problems, std::vector<std::string>{});
}

TEST(Perfetto, RunWithoutSpansWarns) {
  test::SampleRun run = test::pipeline_sample();
  run.trace.spans.clear();
  const auto [trace, result] = export_sample(run);
  EXPECT_EQ(trace.problems, std::vector<std::string>{});
  EXPECT_EQ(result.warnings.size(), 1u);
}

// Two members of a group, 0-10 and 5-30, would cross; they end together. The host wait is on a lane of its own.
TEST(Perfetto, GroupsNestAndHostWaitsHaveALane) {
  test::SampleRun run;
  ScheduleBuilder b(Mesh{{{"dp", 1}}});
  const CommId comm = b.communicator("dp", {"dp"});
  b.begin_program("all", {RankId(0)});
  const LaneId lane = b.lane("network", Engine::Network);
  const GroupId group = b.new_group();
  Op op;
  op.lane = lane;
  op.group = group;
  op.body = AllReduce{comm, DType::Fp32, Bytes(8)};
  const OpId first = b.op(op, {}, {}), second = b.op(op, {}, {});
  Op wait;
  wait.body = HostWait{second};
  const OpId third = b.op(wait, {}, {});
  run.schedule = b.finish();
  run.digest = "group";
  run.trace.spans = {{0, RankId(0), first, at_ns(0), at_ns(0), at_ns(5), at_ns(30)},
                     {0, RankId(0), second, at_ns(0), at_ns(0), at_ns(0), at_ns(10)},
                     {0, RankId(0), third, at_ns(0), at_ns(0), at_ns(0), at_ns(30)}};
  const auto [trace, result] = export_sample(run);
  EXPECT_EQ(trace.problems, std::vector<std::string>{});
  ASSERT_EQ(trace.slices.size(), 3u);
  for (const auto& slice : trace.slices) {
    EXPECT_EQ(slice.end_ns, 30);
    EXPECT_EQ(slice.depth, slice.start_ns == 5 ? 1u : 0u);
    EXPECT_EQ(trace.track(slice.track)->name, slice.name == "wait" ? "1 host" : "0 network");
  }
}

TEST(PerfettoWriter, CutsASliceThatWouldCrossAndTakesNegativeNumbers) {
  std::string file;
  PerfettoWriter writer([&](std::string_view part) { file += part; });
  writer.process(RankId(0), "rank 0");
  writer.lane({RankId(0), 0, "0 compute"});
  PerfettoSource::Slice outer, inner;
  outer.rank = inner.rank = RankId(0);
  outer.name = "a", outer.start_ns = 0, outer.end_ns = 10;
  inner.name = "b", inner.start_ns = 5, inner.end_ns = 15;
  writer.slice(outer);
  writer.slice(inner);
  writer.counter({RankId(0), "c", 3, -7});
  writer.finish();
  const DecodedTrace trace = decode_perfetto(file);
  EXPECT_EQ(trace.problems, std::vector<std::string>{});
  ASSERT_EQ(trace.slices.size(), 2u);
  EXPECT_EQ(trace.slices[0].end_ns, 10);
  EXPECT_EQ(trace.slices[1].end_ns, 10);
  EXPECT_EQ(trace.counters.begin()->second, (std::vector<std::pair<std::int64_t, std::int64_t>>{{3, -7}}));
}

TEST(PerfettoDecoder, SeesFaults) {
  EXPECT_FALSE(decode_perfetto("\x0a\x05zz").problems.empty()) << "cut";
  std::string file;
  PerfettoWriter writer([&](std::string_view part) { file += part; });
  writer.process(RankId(0), "rank 0");
  writer.lane({RankId(0), 0, "0 compute"});
  PerfettoSource::Slice slice;
  slice.rank = RankId(0), slice.name = "send", slice.end_ns = 4, slice.flow_out = 9;
  writer.slice(slice);
  writer.finish();
  EXPECT_EQ(decode_perfetto(file).problems, (std::vector<std::string>{"flow 9 never arrives"}));
}

}  // namespace
}  // namespace steptwin
