// Measured tables: look-up in the cost model (exact, between two points, outside), what a run says about them, and the profile that holds
// them.
#include "sim/cost/measured.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "schedule/base/error.h"
#include "schedule/ir/builder.h"
#include "schedule/ir/op_key.h"
#include "schedule/json/json_reader.h"
#include "schedule/machine/profile_reader.h"
#include "schedule/scenario.h"
#include "sim/cost/cost_models.h"
#include "sim/cost/log_log.h"
#include "sim/simulate.h"
#include "tests/support/schema_check.h"

namespace steptwin {
namespace {

using ::testing::ElementsAre;

Kernel matmul(std::int64_t m) {
  Kernel k;
  k.kind = Kernel::Kind::MatMul;
  k.dtype = DType::Fp32;
  k.m = m, k.n = 10, k.k = 10;
  k.flops = Flops(200 * m);
  k.bytes = Bytes(40 * m);
  return k;
}

Timing taking(std::int64_t us) {
  Timing t;
  t.time = t.median = t.least = t.p10 = t.p90 = Duration(us * 1000);
  t.samples = 1;
  t.rounds = {t.time};
  return t;
}

MeasuredCompute row(const std::string& segment, const std::string& phase, std::int64_t m, std::int64_t us) {
  const Work work{{matmul(m)}};
  return {segment, phase, "compute", kernel_texts(work), work.flops(), work.bytes(), taking(us)};
}

// attn F at m = 100 and 400; an all-reduce of 2 at 1000 and 4000 bytes; a copy down at 100 bytes.
Machine measured_machine() {
  Machine machine = load_machine(machine_preset_path("cpu"));
  MeasuredTables& t = machine.measured.emplace();
  t.backend = "cpu", t.mode = "interp", t.date = "2026-01-01T00:00:00Z", t.host = "h", t.tool = "steptwin",
  t.command = {"steptwin", "calibrate"};
  t.environment = {{"variables.OMP_NUM_THREADS", "1"}};
  t.sources = {{"small", "abc"}};
  t.rounds = 7, t.steps = 3, t.warm_up = 1, t.seed = 5, t.clock = "thread", t.processor_share = 0.75;
  t.compute = {row("attn", "F", 100, 10), row("attn", "F", 400, 40), row("attn", "B", 100, 25)};
  t.transfers = {{"all_reduce", 2, 1, 2, DType::Fp32, Bytes(1000), taking(3)},
                 {"all_reduce", 2, 1, 2, DType::Fp32, Bytes(4000), taking(12)}};
  t.copies = {{"device", "pinned", std::pair{DType::Fp32, DType::Bf16}, Bytes(100), taking(2)}};
  t.issue = {{"compute", taking(1)}};
  return machine;
}

// One rank; compute ops as asked.
struct Asked {
  std::string segment;
  Phase phase = Phase::Forward;
  std::int64_t m = 100;
};
Schedule computes(const std::vector<Asked>& ops) {
  ScheduleBuilder b(Mesh{{{"dp", 1}}});
  b.begin_program("p", {RankId(0)});
  const LaneId lane = b.lane("compute", Engine::Compute);
  for (const Asked& asked : ops) {
    Label label;
    label.phase = asked.phase;
    label.segment = b.name(asked.segment);
    b.compute(lane, label, b.work(Work{{matmul(asked.m)}}), {}, {});
  }
  return b.finish();
}

Cost cost_of(const MeasuredCosts& costs, const Schedule& s, std::uint32_t op = 0) { return costs.compute(s, s.programs[0], s.ops[op]); }

TEST(LogLog, LogarithmAndPowerAgreeWithTheMathsLibrary) {
  for (const double x : {1e-9, 0.7, 1.0, 1.5, 2.0, 3.0, 1e6, 7.7e15}) EXPECT_NEAR(binary_log(x), std::log2(x), 1e-13) << x;
  for (const double x : {-40.3, -1.0, -0.2, 0.0, 0.5, 1.0, 33.37}) EXPECT_NEAR(binary_exp(x) / std::exp2(x), 1, 1e-14) << x;
  EXPECT_NEAR(log_log_line(200, 100, 10, 400, 40), 20, 1e-12) << "proportional: the line through two points of slope 1";
  EXPECT_NEAR(log_log_line(200, 100, 3, 400, 3), 3, 1e-12);
}

TEST(MeasuredCosts, AnExactShapeHasItsRow) {
  const MeasuredCosts costs(measured_machine());
  const Cost cost = cost_of(costs, computes({{"attn", Phase::Forward, 400}}));
  EXPECT_EQ(ns(cost.duration), 40'000);
  EXPECT_EQ(cost.provenance, Provenance::Measured);
  EXPECT_EQ(ns(cost_of(costs, computes({{"attn", Phase::Backward, 100}})).duration), 25'000) << "the same kernels in another phase";
}

TEST(MeasuredCosts, BetweenTwoSizesOfAFamilyItInterpolates) {
  const MeasuredCosts costs(measured_machine());
  const Cost cost = cost_of(costs, computes({{"attn", Phase::Forward, 200}}));
  EXPECT_NEAR(static_cast<double>(ns(cost.duration)), 20'000, 1);
  EXPECT_EQ(cost.provenance, Provenance::Interpolated);
}

TEST(MeasuredCosts, ARecomputedForwardThatWasNotMeasuredCostsTheForward) {
  Machine machine = measured_machine();
  const Cost cost = cost_of(MeasuredCosts(machine), computes({{"attn", Phase::Recompute, 400}}));
  EXPECT_EQ(ns(cost.duration), 40'000);
  EXPECT_EQ(cost.provenance, Provenance::Interpolated);
  machine.measured->compute.push_back(row("attn", "R", 400, 44));
  EXPECT_EQ(ns(cost_of(MeasuredCosts(machine), computes({{"attn", Phase::Recompute, 400}})).duration), 44'000) << "its own row comes first";
}

TEST(MeasuredCosts, OutsideOrUnknownIsAnalyticAndNeverExtrapolated) {
  const Machine machine = measured_machine();
  const MeasuredCosts costs(machine);
  const auto analytic = analytic_costs(machine);
  for (const Asked& asked : std::vector<Asked>{{"attn", Phase::Forward, 401},
                                               {"attn", Phase::Forward, 99},
                                               {"attn", Phase::Backward, 50},
                                               {"mlp", Phase::Forward, 100},
                                               {"attn", Phase::InputGrad, 100}}) {
    const Schedule s = computes({asked});
    const Cost cost = cost_of(costs, s);
    EXPECT_EQ(cost.provenance, Provenance::Analytic) << asked.segment << asked.m;
    EXPECT_EQ(cost.duration, analytic->compute(s, s.programs[0], s.ops[0]).duration);
  }
}

// Between two neighbours in flops, but with more bytes than either: that would be extrapolation in bytes.
TEST(MeasuredCosts, BytesMustLieBetweenThoseOfTheNeighboursToo) {
  const MeasuredCosts costs(measured_machine());
  ScheduleBuilder b(Mesh{{{"dp", 1}}});
  b.begin_program("p", {RankId(0)});
  Kernel heavy = matmul(200);
  heavy.bytes = Bytes(100'000);
  Label label;
  label.phase = Phase::Forward;
  label.segment = b.name("attn");
  b.compute(b.lane("c", Engine::Compute), label, b.work(Work{{heavy}}), {}, {});
  EXPECT_EQ(cost_of(costs, b.finish()).provenance, Provenance::Analytic);
}

TEST(MeasuredCosts, AnOpOfPartsIsTheirSumWithTheWeakestProvenance) {
  const MeasuredCosts costs(measured_machine());
  ScheduleBuilder b(Mesh{{{"dp", 1}}});
  b.begin_program("p", {RankId(0)});
  const NameId attn = b.name("attn");
  const ComputePart exact{Phase::Forward, attn, -1, -1, b.work(Work{{matmul(100)}})},
      between{Phase::Forward, attn, -1, -1, b.work(Work{{matmul(200)}})};
  b.compute_parts(b.lane("c", Engine::Compute), Label{}, {exact, between}, {}, {});
  const Cost cost = cost_of(costs, b.finish());
  EXPECT_NEAR(static_cast<double>(ns(cost.duration)), 30'000, 1);
  EXPECT_EQ(cost.provenance, Provenance::Interpolated);
}

TEST(MeasuredCosts, TransfersByKindMembersTypeAndBytes) {
  const MeasuredCosts costs(measured_machine());
  const Schedule s = computes({});
  const auto ask = [&](OpBody body, CommShape shape) {
    Op op;
    op.body = std::move(body);
    return costs.communicate(s, s.programs[0], op, shape);
  };
  const CommShape pair{2, 1, 2};
  EXPECT_EQ(ns(ask(AllReduce{CommId(0), DType::Fp32, Bytes(4000)}, pair).duration), 12'000);
  const Cost between = ask(AllReduce{CommId(0), DType::Fp32, Bytes(2000)}, pair);
  EXPECT_NEAR(static_cast<double>(ns(between.duration)), 6000, 1);
  EXPECT_EQ(between.provenance, Provenance::Interpolated);
  EXPECT_EQ(ask(AllReduce{CommId(0), DType::Bf16, Bytes(4000)}, pair).provenance, Provenance::Analytic);
  EXPECT_EQ(ask(AllReduce{CommId(0), DType::Fp32, Bytes(4000)}, {4, 1, 4}).provenance, Provenance::Analytic);
  EXPECT_EQ(ask(AllReduce{CommId(0), DType::Fp32, Bytes(4000)}, {2, 2, 1}).provenance, Provenance::Analytic);
  EXPECT_EQ(ask(AllGather{CommId(0), DType::Fp32, Bytes(4000)}, pair).provenance, Provenance::Analytic);
}

TEST(MeasuredCosts, IssueIsMeasuredUnlessOneThreadDoesEverything) {
  Machine machine = measured_machine();
  const Schedule s = computes({{"attn"}});
  EXPECT_EQ(ns(MeasuredCosts(machine).launch(s, s.ops[0]).total), 1000);
  machine.host.slot_scope = SlotScope::Everything;
  EXPECT_EQ(ns(MeasuredCosts(machine).launch(s, s.ops[0]).total), 0) << "part of the turnaround";
}

// Works are shared by ops of different phases: the price must not be.
TEST(MeasuredCosts, PricesOfOneWorkDifferByPhaseAndAreSimulatedSo) {
  const Machine machine = measured_machine();
  const Schedule s = computes({{"attn", Phase::Forward, 100}, {"attn", Phase::Backward, 100}, {"attn", Phase::Forward, 100}});
  EXPECT_EQ(s.works.size(), 1u);
  const Trace trace = simulate(s, MeasuredCosts(machine), nullptr);
  EXPECT_EQ(ns(trace.step_time), 10'000 + 25'000 + 10'000);
  EXPECT_THAT(trace.provenance, ElementsAre(0, 0, 0, 3));
  EXPECT_TRUE(trace.warnings.empty());
}

TEST(MeasuredCosts, ARunSaysOnceWhatWasNotMeasured) {
  const Schedule s =
      computes({{"attn", Phase::Forward, 200}, {"mlp", Phase::Forward, 100}, {"mlp", Phase::Forward, 100}, {"attn", Phase::Backward, 7}});
  const Trace trace = simulate(s, MeasuredCosts(measured_machine()), nullptr);
  EXPECT_THAT(trace.provenance, ElementsAre(0, 3, 1, 0));
  EXPECT_THAT(trace.warnings, ElementsAre("3 of 4 ops were not measured and have analytic times: compute B attn (1), compute F mlp (2)"));
  const Trace analytic = simulate(s, *analytic_costs(measured_machine()), nullptr);
  EXPECT_TRUE(analytic.warnings.empty()) << "an analytic model promises nothing else";
}

// ---- the profile ---------------------------------------------------------------------------------------------------------

Machine read_text(const std::string& text, JsonProblems& problems) {
  const JsonDocument doc = JsonDocument::parse(text, "m.json", problems);
  return read_machine(doc.root(), problems);
}

TEST(MeasuredProfile, WritingAndReadingGivesEqualTablesAndSources) {
  Machine machine = measured_machine();
  machine.host.slot_scope = SlotScope::Everything;
  machine.host.turnaround = Duration(6543);
  machine.sources["/host/turnaround_us"] = "measured";
  JsonProblems problems;
  const Machine again = read_text(machine_profile_json(machine), problems);
  ASSERT_TRUE(problems.empty()) << format_diagnostic(problems.list().at(0));
  EXPECT_EQ(again.measured, machine.measured);
  EXPECT_EQ(again.sources, machine.sources);
  EXPECT_EQ(again.host.slot_scope, SlotScope::Everything);
  EXPECT_EQ(ns(again.host.turnaround), 6543);
  EXPECT_EQ(machine_profile_json(again), machine_profile_json(machine));
}

TEST(MeasuredProfile, TheSchemaAcceptsIt) {
  const auto schema = nlohmann::json::parse(read_text_file(SOURCE_DIR "/scenarios/schema.json"));
  nlohmann::json whole = schema["definitions"]["machine_profile"];
  whole["definitions"] = schema["definitions"];
  EXPECT_EQ(testing::schema_violations(whole, nlohmann::json::parse(machine_profile_json(measured_machine()))), std::vector<std::string>{});
}

TEST(MeasuredProfile, BrokenRowsAreNamedWithPlaceAndRemedy) {
  const std::string text = machine_profile_json(measured_machine());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    EXPECT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    JsonProblems problems;
    read_text(changed, problems);
    return problems.list().empty() ? Diagnostic{} : problems.list()[0];
  };
  const Diagnostic negative = with("\"time_us\": 40.0", "\"time_us\": -40.0");
  EXPECT_EQ(negative.code, "RANGE");
  EXPECT_EQ(negative.place.pointer, "/measured/compute/1/time_us");
  EXPECT_GT(negative.place.line, 100);
  EXPECT_EQ(with("\"matmul fp32 1 100", "\"matmul fp32 100").code, "KERNEL");
  EXPECT_EQ(with("\"kind\": \"all_reduce\"", "\"kind\": \"all_reduced\"").code, "UNKNOWN-VALUE");
  EXPECT_EQ(with("\"mode\": \"interp\"", "\"mode\": \"intrep\"").code, "UNKNOWN-VALUE");
  EXPECT_EQ(with("\"samples\": 1", "\"sample\": 1").code, "UNKNOWN-KEY");
  EXPECT_EQ(with("\"bytes\": 4000,\n        \"time_us\": 12.0", "\"bytes\": 1000,\n        \"time_us\": 12.0").code, "DUPLICATE");
  EXPECT_EQ(with("\"cast_to\": \"bf16\",", "").code, "MISSING");
  EXPECT_EQ(with("\"compute\": [", "\"copy\": [").code, "UNKNOWN-KEY");
}

TEST(MeasuredProfile, SlotsForEverythingAndSharedLinksExcludeEachOther) {
  Machine machine = measured_machine();
  machine.sharing = LinkSharing::Fair;
  machine.host.slot_scope = SlotScope::Everything;
  JsonProblems problems;
  read_text(machine_profile_json(machine), problems);
  ASSERT_EQ(problems.list().size(), 1u);
  EXPECT_EQ(problems.list()[0].code, "CONFLICT");
  EXPECT_EQ(problems.list()[0].place.pointer, "/host/slot_scope");
}

}  // namespace
}  // namespace steptwin
