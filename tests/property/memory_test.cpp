// The memory curves of random and compiled schedules against their definitions (DESIGN 3), by brute force over the spans.
#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/ir/liveness.h"
#include "schedule/ir/text.h"
#include "tests/support/memory_oracle.h"
#include "tests/support/random_schedule.h"
#include "tests/support/referee.h"
#include "tests/support/rehearsal.h"

namespace steptwin {
namespace {

using test::MemoryOracle;

std::vector<Span> spans_of(const Trace& trace, RankId rank) {
  std::vector<Span> spans;
  for (const Span& span : trace.spans)
    if (span.rank == rank) spans.push_back(span);
  return spans;
}

const MemoryPeak* peak_of(const Trace& trace, RankId rank, Space space, Curve curve) {
  for (const MemoryPeak& p : trace.peaks)
    if (p.rank == rank && p.space == space && p.curve == curve) return &p;
  return nullptr;
}

std::vector<MemorySample> samples_of(const Trace& trace, RankId rank, Space space, Curve curve, std::size_t category = kCategories) {
  std::vector<MemorySample> out;
  for (const MemorySample& s : trace.samples)
    if (s.rank == rank && s.space == space && s.curve == curve && s.category_index == category) out.push_back(s);
  return out;
}

std::int64_t level_at(const std::vector<MemorySample>& samples, std::int64_t at) {
  std::int64_t level = 0;
  for (const MemorySample& s : samples)
    if (ns(s.at) <= at) level = s.bytes.value;
  return level;
}

// One rank and space of a trace.
struct View {
  const Schedule& schedule;
  const Program& program;
  const Trace& trace;
  const MemoryOracle& oracle;
  RankId rank;
  Space space;
};

void check_peaks(const View& v) {
  for (const Curve curve : {Curve::Allocated, Curve::Active, Curve::Reserved, Curve::Live}) {
    const MemoryPeak* peak = peak_of(v.trace, v.rank, v.space, curve);
    ASSERT_NE(peak, nullptr) << name_of(curve);
    const test::OraclePeak expected = v.oracle.peak(v.space, curve);
    EXPECT_EQ(peak->bytes.value, expected.bytes) << name_of(curve);
    EXPECT_EQ(ns(peak->at), expected.at) << name_of(curve);
    EXPECT_EQ(peak->op.valid(), expected.op != 0xffffffffu) << name_of(curve);
    const bool by_op = curve == Curve::Allocated || curve == Curve::Active;
    std::int64_t sum = 0;
    for (const Bytes bytes : peak->by_category) sum += bytes.value;
    EXPECT_EQ(sum, curve == Curve::Reserved ? 0 : peak->bytes.value) << name_of(curve);
    if (!peak->op.valid() || curve == Curve::Reserved) continue;
    if (by_op) {
      EXPECT_EQ(peak->op.value - v.program.first_op.value, expected.op) << name_of(curve);
    }
    for (std::size_t c = 0; c < kCategories; ++c) {
      const std::int64_t level =
          by_op ? v.oracle.level_at_op(v.space, curve, expected.op, c) : v.oracle.level(v.space, curve, expected.at, c);
      EXPECT_EQ(peak->by_category[c].value, level) << name_of(curve) << " category " << c;
    }
  }
  const auto by_op = allocated_curve(v.schedule, v.program, v.space, Repetition::First);
  std::int64_t highest = v.oracle.resident(v.space);
  for (const Bytes bytes : by_op) highest = std::max(highest, bytes.value);
  EXPECT_EQ(peak_of(v.trace, v.rank, v.space, Curve::Allocated)->bytes.value, highest);
}

// The level from every instant on: the first sample shows the resident level at 0, where more may begin at once.
std::vector<MemorySample> settled(const std::vector<MemorySample>& samples) {
  std::vector<MemorySample> out;
  for (const MemorySample& s : samples) {
    if (!out.empty() && out.back().at == s.at) out.pop_back();
    out.push_back(s);
  }
  return out;
}

void check_curve(const View& v, Curve curve) {
  const std::int64_t resident = v.oracle.resident(v.space);
  const auto samples = settled(samples_of(v.trace, v.rank, v.space, curve));
  ASSERT_FALSE(samples.empty());
  EXPECT_TRUE(std::is_sorted(samples.begin(), samples.end(), [](const MemorySample& a, const MemorySample& b) { return a.at < b.at; }));
  std::int64_t highest = 0;
  for (const MemorySample& s : samples) {
    EXPECT_GE(s.bytes.value, resident);
    highest = std::max(highest, s.bytes.value);
  }
  std::int64_t kept = resident;
  for (const test::OracleBuffer& b : v.oracle.buffers())
    if (b.buffer->lazy && b.buffer->space == v.space) kept += b.buffer->bytes.value;
  EXPECT_EQ(samples.back().bytes.value, kept) << name_of(curve);
  const std::int64_t peak = peak_of(v.trace, v.rank, v.space, curve)->bytes.value;
  EXPECT_LE(highest, peak) << "spikes of no width have no sample";
  if (curve == Curve::Live) {
    EXPECT_EQ(highest, peak);
  }
  std::vector<std::int64_t> instants;
  for (const test::OracleBuffer& b : v.oracle.buffers())
    if (!b.resident) instants.insert(instants.end(), {b.allocated_at, b.dropped_at, b.released_at, b.live_from, b.live_to});
  std::erase(instants, INT64_MAX);  // lazy ones stay
  for (std::size_t c = 0; c <= kCategories; ++c) {
    const auto of_category = settled(samples_of(v.trace, v.rank, v.space, curve, c));
    for (const std::int64_t at : instants)
      EXPECT_EQ(level_at(of_category, at), v.oracle.level(v.space, curve, at, c)) << name_of(curve) << " category " << c << " at " << at;
  }
}

void check_order(const View& v) {
  const auto allocated = samples_of(v.trace, v.rank, v.space, Curve::Allocated),
             active = samples_of(v.trace, v.rank, v.space, Curve::Active), reserved = samples_of(v.trace, v.rank, v.space, Curve::Reserved);
  for (const auto* curve : {&allocated, &active})
    for (const MemorySample& s : *curve) EXPECT_GE(level_at(active, ns(s.at)), level_at(allocated, ns(s.at)));
  for (std::size_t i = 1; i < reserved.size(); ++i) {
    EXPECT_GT(reserved[i].bytes, reserved[i - 1].bytes);
    EXPECT_GE(reserved[i].at, reserved[i - 1].at);
  }
  EXPECT_EQ(reserved.back().bytes, peak_of(v.trace, v.rank, v.space, Curve::Reserved)->bytes);
  const Bytes active_peak = peak_of(v.trace, v.rank, v.space, Curve::Active)->bytes;
  EXPECT_GE(peak_of(v.trace, v.rank, v.space, Curve::Reserved)->bytes, active_peak);
  EXPECT_GE(active_peak, peak_of(v.trace, v.rank, v.space, Curve::Allocated)->bytes);
}

// What every op of a program costs the host when each launch costs the same: a group is one launch, a HostWait none.
std::vector<std::int64_t> launches_of(const Schedule& schedule, const Program& program, std::int64_t launch) {
  std::vector<std::int64_t> out;
  GroupId before;
  for (const Op& op : schedule.ops_of(program)) {
    out.push_back(op.lane.valid() && !(op.group.valid() && op.group == before) ? launch : 0);
    before = op.group;
  }
  return out;
}

// launch >= 0: hosts may have waited for room.
void check_memory(const Schedule& schedule, const Trace& trace, std::int64_t launch = -1) {
  ASSERT_EQ(trace.outcome.status, Status::Ok) << trace.outcome.text;
  const auto programs = schedule.program_of_rank();
  for (const RankId rank : trace.simulated) {
    const Program& program = schedule.programs[programs[rank.value].value];
    const MemoryOracle oracle(schedule, program, spans_of(trace, rank),
                              launch >= 0 ? launches_of(schedule, program, launch) : std::vector<std::int64_t>());
    for (std::size_t s = 0; s < kSpaces; ++s) {
      const View view{schedule, program, trace, oracle, rank, static_cast<Space>(s)};
      SCOPED_TRACE("rank " + std::to_string(rank.value) + " " + name_of(view.space));
      ASSERT_EQ(peak_of(trace, rank, view.space, Curve::Allocated) != nullptr, oracle.uses(view.space));
      if (!oracle.uses(view.space)) continue;
      check_peaks(view);
      for (const Curve curve : {Curve::Allocated, Curve::Active, Curve::Live}) check_curve(view, curve);
      check_order(view);
    }
  }
}

TEST(Memory, CurvesOfRandomSchedulesFollowTheirDefinitions) {
  for (std::uint64_t seed = 1; seed <= 2000 && !testing::Test::HasFailure(); ++seed) {
    const Schedule schedule = test::random_memory_schedule(seed, seed % 20 == 0 ? 120 : 40);
    SimulateOptions options;
    options.engine = seed % 2 == 0 ? EngineChoice::Replay : EngineChoice::Event;
    const Trace trace = simulate(schedule, test::PlainCosts(static_cast<std::int64_t>(seed % 4)), nullptr, options);
    check_memory(schedule, trace);
    if (testing::Test::HasFailure()) std::cout << "seed " << seed << "\n" << print_schedule(schedule);
  }
}

TEST(Memory, CurvesOfCompiledScenariosFollowTheirDefinitions) {
  for (const char* order : {"gpipe", "1f1b"})
    for (const char* p2p : {"lanes", "grouped"})
      for (const char* recompute : {"none", "full"}) {
        const std::string text =
            R"({"format": 1, "model": {"family": "gpt", "layers": 4, "hidden": 64, "heads": 4, "vocabulary": 128, "positions": 32},
          "mesh": {"pp": 2, "dp": 2}, "batch": {"micro_batches": 3, "micro_batch_size": 2, "sequence_length": 32},
          "machine": {"preset": "h200_node"}})";
        const test::Rehearsal run = test::rehearse(text, {{"schedule.order", order}, {"schedule.p2p", p2p}, {"recompute.mode", recompute}});
        SCOPED_TRACE(std::string(order) + " " + p2p + " " + recompute);
        check_memory(run.schedule, run.trace);
      }
}

// ---- a limit on `active` --------------------------------------------------------------------------------------------------

struct Limited {
  std::int64_t allocated = 0, active = 0;  // largest peaks over ranks without a limit
};

Limited unlimited_peaks(const Trace& trace) {
  Limited out;
  for (const MemoryPeak& p : trace.peaks) {
    if (p.space != Space::Device) continue;
    if (p.curve == Curve::Allocated) out.allocated = std::max(out.allocated, p.bytes.value);
    if (p.curve == Curve::Active) out.active = std::max(out.active, p.bytes.value);
  }
  return out;
}

// Where `active` would exceed the capacity and `allocated` does not, the host waits: the engine as the referee, op by op, and the
// curve stays within the capacity.
TEST(Memory, HostsThatWaitForRoomAgreeWithTheReferee) {
  int stalled = 0, longer = 0;
  for (std::uint64_t seed = 1; seed <= 3000 && !testing::Test::HasFailure(); ++seed) {
    const Schedule schedule = test::random_memory_schedule(seed, 60);
    const std::int64_t launch = static_cast<std::int64_t>(seed % 3);
    const test::PlainCosts costs(launch);
    SimulateOptions options;
    options.fold = FoldChoice::Off;
    const Trace free = simulate(schedule, costs, nullptr, options);
    const Limited peaks = unlimited_peaks(free);
    if (peaks.active <= peaks.allocated) continue;
    Machine machine;
    machine.devices_per_node = 64;
    machine.device.memory = Bytes(peaks.allocated + static_cast<std::int64_t>(seed) % (peaks.active - peaks.allocated));
    const Trace trace = simulate(schedule, costs, &machine, options);
    ++stalled;
    EXPECT_EQ(test::difference(schedule, trace, test::referee(schedule, launch, {false, 0, machine.device.memory.value})), "")
        << "seed " << seed << " capacity " << machine.device.memory.value << "\n"
        << print_schedule(schedule);
    // A stall behind which nothing is freed: tests/unit/memory_limits_test.cpp.
    EXPECT_EQ(trace.outcome.status, Status::Ok) << "seed " << seed;
    EXPECT_LE(unlimited_peaks(trace).active, machine.device.memory.value) << "seed " << seed << "\n" << print_schedule(schedule);
    EXPECT_GE(trace.step_time, free.step_time) << "seed " << seed;
    longer += trace.step_time > free.step_time ? 1 : 0;
    check_memory(schedule, trace, launch);
    if (seed % 5 != 0) continue;
    options.steps = 2;
    machine.device.memory = Bytes(unlimited_peaks(simulate(schedule, costs, nullptr, options)).allocated);  // lazy buffers stay
    const Trace twice = simulate(schedule, costs, &machine, options);
    EXPECT_EQ(twice.outcome.status, Status::Ok) << "seed " << seed;
    EXPECT_EQ(unlimited_peaks(twice).active, machine.device.memory.value) << "seed " << seed;
  }
  std::cout << stalled << " stalled, " << longer << " took longer\n";
  EXPECT_GT(stalled, 500);
  EXPECT_GT(longer, 100);
}

}  // namespace
}  // namespace steptwin
