// Calibration without LibTorch: statistics, what a trace is taken apart into, the sweep, and that a calibrated scenario is known in full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/calibrate/calibrate.h"
#include "exec/calibrate/sweep.h"
#include "exec/cpu/execution.h"
#include "schedule/base/error.h"
#include "schedule/compile.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "schedule/machine/profile_reader.h"
#include "schedule/scenario.h"
#include "sim/cost/cost_models.h"
#include "sim/simulate.h"

namespace steptwin {
namespace {

using ::testing::ElementsAre;

TEST(Statistics, QuantilesLieBetweenNeighbours) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({7}, 0.9), 7);
  EXPECT_EQ(quantile({30, 10, 20}, 0.5), 20);
  EXPECT_EQ(quantile({10, 20, 30, 40}, 0.5), 25);
  EXPECT_EQ(quantile({0, 100}, 0.1), 10);
}

TEST(Statistics, TheTimeIsTheSmallestMedianOfARound) {
  const Timing t = timing_of({{10, 12, 14}, {}, {9, 11, 100}, {20, 20, 20}});
  EXPECT_EQ(ns(t.time), 11);
  EXPECT_THAT(t.rounds, ElementsAre(Duration(12), Duration(11), Duration(20)));
  EXPECT_EQ(t.samples, 9);
  EXPECT_EQ(ns(t.least), 9);
  EXPECT_EQ(ns(t.median), 14);
  EXPECT_EQ(ns(t.deviation), 5) << "distances from 14, sorted: 0 2 3 4 5 6 6 6 86";
}

// A trace written by hand; spans by rank, then op.
Trace trace_of(const std::vector<Span>& spans, std::uint32_t ranks) {
  Trace trace;
  trace.spans = spans;
  for (std::uint32_t r = 0; r < ranks; ++r) trace.simulated.emplace_back(r), trace.stand_in.emplace_back(r);
  return trace;
}
Span span(std::uint32_t rank, std::uint32_t op, std::int64_t issue, std::int64_t start, std::int64_t end, std::uint32_t step = 0) {
  return {step, RankId(rank), OpId(op), at_ns(issue), at_ns(start), at_ns(start), at_ns(end)};
}

const char* const kPair = R"(mesh dp 2
comm n axes dp
program p ranks 0
  lane c compute
  lane net network
  0 compute F attn lane c
  1 send on n to 1 dtype fp32 bytes 64 lane net after 0
program q ranks 1
  lane c compute
  lane net network
  0 recv on n from 0 dtype fp32 bytes 64 lane net
  1 compute B attn lane c after 0
)";

// One thread: compute 100-200; both ends of the message were ready at 200, it ended at 250, and the thread began it at once; the next
// compute began 30 later.
TEST(Timeline, OneThreadDoesOneThingAtATime) {
  const Schedule s = parse_schedule(kPair, "pair");
  const Matching m = match(s, Folding::None);
  const Trace trace = trace_of({span(0, 0, 10, 100, 200), span(0, 1, 20, 200, 250), span(1, 2, 40, 200, 250), span(1, 3, 50, 280, 300)}, 2);
  const std::vector<WorkItem> items = timeline(m, trace, ExecutionMode::Interp);
  ASSERT_EQ(items.size(), 3u) << "a message is one item";
  EXPECT_EQ(items[1].begin, 200);
  EXPECT_EQ(items[1].end, 250);
  EXPECT_FALSE(items[1].local);
  EXPECT_EQ(items[2].idle, 30);
  Tabulator tabulator(ExecutionMode::Interp);
  tabulator.add(s, m, trace);
  tabulator.end_round();
  MeasuredTables t;
  tabulator.fill(t);
  ASSERT_EQ(t.compute.size(), 2u);
  EXPECT_EQ(t.compute[0].phase, "B");
  EXPECT_EQ(ns(t.compute[0].timing.time), 20);
  EXPECT_EQ(ns(t.compute[1].timing.time), 100);
  ASSERT_EQ(t.transfers.size(), 1u);
  EXPECT_EQ(t.transfers[0].kind, "message");
  EXPECT_EQ(t.transfers[0].bytes.value, 64);
  EXPECT_EQ(ns(t.transfers[0].timing.time), 50);
  EXPECT_EQ(ns(tabulator.turnaround().time), 15) << "30 between works, two compute ops";
  ASSERT_EQ(t.issue.size(), 3u);
  EXPECT_EQ(t.issue[2].kind, "send");
  EXPECT_EQ(ns(t.issue[2].timing.time), 10);
}

// A message that was ready while the thread still computed counts from when the thread was free; with a worker a lane it does not.
TEST(Timeline, ATransferThatWaitsForTheThreadCountsFromThen) {
  const Schedule s = parse_schedule(kPair, "pair");
  const Matching m = match(s, Folding::None);
  const Trace trace = trace_of({span(0, 0, 0, 0, 100), span(0, 1, 0, 20, 150), span(1, 2, 0, 20, 150), span(1, 3, 0, 150, 160)}, 2);
  EXPECT_EQ(timeline(m, trace, ExecutionMode::Interp)[1].begin, 100);
  EXPECT_EQ(timeline(m, trace, ExecutionMode::Threads)[1].begin, 20);
}

// Two messages of a group, 100 together: 50 each.
TEST(Timeline, AGroupIsSharedByItsMembers) {
  const Schedule s = parse_schedule(R"(mesh dp 2
comm n axes dp
program p ranks 0
  lane net network
  0 send on n to 1 dtype fp32 bytes 64 lane net group 0
  1 recv on n from 1 dtype fp32 bytes 64 lane net group 0
program q ranks 1
  lane net network
  0 recv on n from 0 dtype fp32 bytes 64 lane net group 0
  1 send on n to 0 dtype fp32 bytes 64 lane net group 0
)",
                                    "group");
  Tabulator tabulator(ExecutionMode::Interp);
  tabulator.add(s, match(s, Folding::None),
                trace_of({span(0, 0, 0, 10, 110), span(0, 1, 0, 10, 110), span(1, 2, 0, 10, 110), span(1, 3, 0, 10, 110)}, 2));
  MeasuredTables t;
  tabulator.fill(t);
  ASSERT_EQ(t.transfers.size(), 1u);
  EXPECT_EQ(ns(t.transfers[0].timing.time), 50);
}

// "sleep" takes 5 ms of the wall's time and none of the processor's.
TEST(StampClock, ThreadTimeDoesNotCountWhatTheThreadDoesNotDo) {
  const Schedule s = parse_schedule(
      "mesh dp 1\nprogram p ranks 0\n  lane c compute\n  buffer x 16B\n  0 compute F sleep write x lane c\n", "sleep");
  ExecuteOptions options;
  options.text.resize(4096, 'a');
  const auto duration = [&] {
    const Trace trace = execute_on_cpu(s, options).trace;
    return ns(trace.spans.at(0).end - trace.spans.at(0).start);
  };
  EXPECT_GE(duration(), 5'000'000);
  options.clock = StampClock::ThreadTime;
  EXPECT_LT(duration(), 5'000'000);
  options.mode = ExecutionMode::Threads;
  EXPECT_THROW(duration(), InternalError);
}

TEST(Sweep, EverySchedulePassesVerifyAndRuns) {
  ExecuteOptions options;
  options.text.resize(4096, 'a');
  for (const SweepSchedule& sweep : sweep_schedules({1, 2, 3})) {
    for (const Diagnostic& d : verify(sweep.schedule)) EXPECT_NE(d.severity, Severity::Error) << sweep.name << ": " << format_diagnostic(d);
    EXPECT_EQ(execute_on_cpu(sweep.schedule, options).trace.outcome.status, Status::Ok) << sweep.name;
  }
}

// ---- the whole way --------------------------------------------------------------------------------------------------------

class FakeBackend final : public Backend {
 public:
  std::string name() const override { return "fake"; }
  std::string environment() const override { return "{}"; }
  ExecutionResult run(const Schedule& schedule, const ExecuteOptions& options) override { return execute_on_cpu(schedule, options); }
  ExecutionResult run_plain(const Schedule&, const ExecuteOptions&) override { return {}; }
};

Scenario small(const std::vector<Override>& overrides = {}) {
  return parse_scenario(R"({"format": 1, "name": "small",
 "model": {"family": "gpt", "layers": 4, "hidden": 64, "heads": 4, "vocabulary": 128, "positions": 32, "tied": true},
 "mesh": {"pp": 2, "dp": 2}, "batch": {"micro_batches": 4, "micro_batch_size": 2, "sequence_length": 32},
 "precision": {"compute": "fp32", "master": "fp32", "gradient": "fp32"},
 "schedule": {"order": "1f1b"}, "optimizer": {"kind": "adam"}, "machine": {"preset": "cpu"}})",
                        "small.json", overrides);
}

Machine calibrated(const std::vector<CalibrationSubject>& subjects, ExecutionMode mode) {
  ExecuteOptions options;
  options.mode = mode;
  options.compute_slots = mode == ExecutionMode::Interp ? 1 : 2;
  options.steps = 2;
  options.warm_up = 1;
  for (int i = 0; i < 8192; ++i) options.text.push_back(static_cast<std::uint8_t>(i % 97));
  FakeBackend backend;
  Calibration calibration(load_machine(machine_preset_path("cpu")), options, subjects);
  EXPECT_EQ(calibration.run_round(backend).status, Status::Ok);
  EXPECT_EQ(calibration.run_round(backend).status, Status::Ok);
  return calibration.machine(backend.name());
}

TEST(Calibration, ACalibratedScenarioIsKnownInFullAndStaysSoThroughItsProfile) {
  const Scenario scenario = small();
  const Schedule schedule = compile(scenario);
  for (const ExecutionMode mode : {ExecutionMode::Interp, ExecutionMode::Threads}) {
    const Machine machine = calibrated({{"small", scenario.sha256, schedule}}, mode);
    JsonProblems problems;
    const JsonDocument doc = JsonDocument::parse(machine_profile_json(machine), "profile.json", problems);
    const Machine read = read_machine(doc.root(), problems);
    ASSERT_TRUE(problems.empty()) << format_diagnostic(problems.list()[0]);
    EXPECT_EQ(read.measured, machine.measured);
    EXPECT_EQ(machine.measured->rounds, 2);
    const Trace trace = simulate(schedule, *measured_costs(read), &read);
    EXPECT_EQ(trace.outcome.status, Status::Ok);
    EXPECT_TRUE(trace.warnings.empty()) << trace.warnings.front();
    EXPECT_GT(trace.provenance[static_cast<std::size_t>(Provenance::Measured)], 100u);
    EXPECT_EQ(trace.provenance[static_cast<std::size_t>(Provenance::Analytic)], 0u);
  }
}

// Another order, other micro-batches and stages have the same shapes; another hidden size has none of them.
TEST(Calibration, ShapesCarryOverToOtherScenarios) {
  const Scenario scenario = small();
  const Machine machine = calibrated({{"small", scenario.sha256, compile(scenario)}}, ExecutionMode::Interp);
  const auto costs = measured_costs(machine);
  const auto analytic_ops = [&](const std::vector<Override>& overrides) {
    return simulate(compile(small(overrides)), *costs, &machine).provenance[static_cast<std::size_t>(Provenance::Analytic)];
  };
  EXPECT_EQ(analytic_ops({{"schedule.order", "gpipe"}}), 0u);
  EXPECT_EQ(analytic_ops({{"batch.micro_batches", "7"}}), 0u);
  EXPECT_GT(analytic_ops({{"model.hidden", "128"}}), 100u);
}

// One thread: however the ranks interleave, a step takes the sum of all works and turnarounds.
TEST(Calibration, AnInterpMachineTakesTheSumOfAllWorks) {
  const Scenario scenario = small();
  const Schedule schedule = compile(scenario);
  const Machine machine = calibrated({{"small", scenario.sha256, schedule}}, ExecutionMode::Interp);
  EXPECT_EQ(machine.host.compute_slots, 1);
  EXPECT_EQ(machine.host.slot_scope, SlotScope::Everything);
  const Trace trace = simulate(schedule, *measured_costs(machine), &machine);
  std::int64_t sum = 0;
  for (const WorkItem& item : timeline(match(schedule, Folding::None), trace, ExecutionMode::Interp))
    sum += item.end - item.begin + (item.local ? ns(machine.host.turnaround) : 0);
  EXPECT_EQ(ns(trace.step_time) + ns(machine.host.turnaround), sum) << "a step begins with the start of its first op";
}

// ---- contention -----------------------------------------------------------------------------------------------------------

// Alone 1000 and 300; with 0 to 3 others 4 % more for each.
TEST(Contention, IsFoundFromTimesAgainstHowManyOthersComputed) {
  const auto samples = [](std::int64_t alone) {
    CrowdedRounds rounds(2);
    for (int i = 0; i < 40; ++i) {
      const double others = 0.1 * (i % 31);
      rounds[static_cast<std::size_t>(i % 2)].push_back({std::llround(static_cast<double>(alone) * (1 + 0.04 * others)), others});
    }
    return rounds;
  };
  const CrowdedRounds a = samples(1'000'000), b = samples(300'000);
  EXPECT_NEAR(contention_of({&a, &b}), 0.04, 0.001);
  EXPECT_NEAR(static_cast<double>(ns(timing_of(times_alone(a, 0.04)).time)), 1e6, 2);
  EXPECT_NEAR(static_cast<double>(ns(timing_of(times_alone(b, 0.04)).time)), 3e5, 2);
}

TEST(Contention, IsNotInventedWhereTheNumberOfOthersHardlyVaries) {
  const CrowdedRounds alone(1, {{100, 0}, {130, 0}, {90, 0}}), always(1, {{500, 2.9}, {600, 3}, {550, 3}});
  EXPECT_EQ(contention_of({&alone}), 0);
  EXPECT_EQ(contention_of({&always}), 0);
  EXPECT_EQ(contention_of({}), 0);
}

// A machine with a known contention, executed by the simulator: calibration gives it and the times alone back.
TEST(Contention, OfASimulatedMachineIsGivenBack) {
  const Schedule schedule = compile(small());
  Machine machine = load_machine(machine_preset_path("h200_node"));
  machine.host.compute_contention = 0.2;
  machine.host.kernel_launch = machine.host.transfer_launch = Duration(0);  // an op's time is its work
  const auto costs = analytic_costs(machine);
  SimulateOptions options;
  options.fold = FoldChoice::Off;
  const Trace trace = simulate(schedule, *costs, &machine, options);
  Tabulator tabulator(ExecutionMode::Streams);
  tabulator.add(schedule, match(schedule, Folding::None), trace);
  tabulator.end_round();
  EXPECT_NEAR(tabulator.contention(), 0.2, 0.01);
  MeasuredTables tables;
  tabulator.fill(tables);
  Machine alone = machine;
  alone.host.compute_contention = 0;
  const Trace undisturbed = simulate(schedule, *costs, &alone, options);
  Tabulator truth(ExecutionMode::Streams);
  truth.add(schedule, match(schedule, Folding::None), undisturbed);
  truth.end_round();
  MeasuredTables expected;
  truth.fill(expected);
  ASSERT_EQ(tables.compute.size(), expected.compute.size());
  for (std::size_t i = 0; i < tables.compute.size(); ++i)
    EXPECT_NEAR(static_cast<double>(ns(tables.compute[i].timing.time)), static_cast<double>(ns(expected.compute[i].timing.time)),
                0.02 * static_cast<double>(ns(expected.compute[i].timing.time)))
        << tables.compute[i].segment << " " << tables.compute[i].phase;
}

}  // namespace
}  // namespace steptwin
