// Replay agenda == event agenda == slow reference, op by op, on exhaustive small and random large schedules.
#include <gtest/gtest.h>

#include "schedule/ir/text.h"
#include "sim/cost/cost_models.h"
#include "sim/simulate.h"
#include "tests/support/random_schedule.h"
#include "tests/support/slow_simulate.h"

namespace steptwin {
namespace {

// Op::given durations, and a launch cost that differs from op to op.
class TestCosts : public CostModel {
 public:
  explicit TestCosts(std::int64_t launch) : launch_(launch) {}
  std::string name() const override { return "test"; }
  Cost compute(const Schedule&, const Program&, const Op&) const override { return {}; }
  Cost copy(const Schedule&, const Program&, OpId) const override { return {}; }
  Cost communicate(const Schedule&, const Program&, const Op&, const CommShape&) const override { return {}; }
  Launch launch(const Schedule&, const Op&) const override { return {Duration(launch_), Duration(launch_)}; }

 private:
  std::int64_t launch_;
};

Machine linked_machine() {
  Machine machine;
  machine.devices_per_node = 64;
  machine.sharing = LinkSharing::Fair;
  return machine;
}

// First difference between a trace and the referee; empty when there is none.
std::string difference(const Schedule& schedule, const Trace& trace, const test::SlowResult& slow) {
  const bool finished = trace.outcome.status == Status::Ok;
  if (finished != slow.finished) return finished ? "the engine finished, the referee did not" : "the referee finished, the engine did not";
  std::size_t ended = 0;
  for (const auto& [key, t] : slow.times) ended += t.end >= 0 ? 1 : 0;
  if (ended != trace.spans.size()) return "spans " + std::to_string(trace.spans.size()) + ", referee " + std::to_string(ended);
  for (const Span& span : trace.spans) {
    const test::SlowTimes& t = slow.times.at({span.rank.value, span.op.value});
    if (ns(span.issue) == t.issue && ns(span.ready) == t.ready && ns(span.start) == t.start && ns(span.end) == t.end) continue;
    return "rank " + std::to_string(span.rank.value) + " `" + print_op(schedule, span.op) + "` engine " + std::to_string(ns(span.issue)) + "/" +
           std::to_string(ns(span.ready)) + "/" + std::to_string(ns(span.start)) + "/" + std::to_string(ns(span.end)) + " referee " +
           std::to_string(t.issue) + "/" + std::to_string(t.ready) + "/" + std::to_string(t.start) + "/" + std::to_string(t.end);
  }
  return "";
}

struct Case {
  EngineChoice engine = EngineChoice::Replay;
  std::int64_t launch = 0;
  bool links = false;
};

std::string check(const Schedule& schedule, const Case& c) {
  const TestCosts costs(c.launch);
  SimulateOptions options;
  options.engine = c.engine;
  options.fold = FoldChoice::Off;
  const Machine machine = linked_machine();
  const Trace trace = simulate(schedule, costs, c.links ? &machine : nullptr, options);
  const test::SlowResult slow = test::slow_simulate(
      schedule, {[&](RankId, OpId op) { return ns(schedule.ops[op.value].given); }, [&](RankId, OpId) { return c.launch; }, c.links});
  return difference(schedule, trace, slow);
}

// Drops ops while the fault stays; returns the smallest failing schedule as text.
std::string shrunk(Schedule schedule, const Case& c) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (std::uint32_t op = 0; op < schedule.ops.size(); ++op) {
      Schedule candidate = test::without_op(schedule, OpId(op));
      if (check(candidate, c).empty()) continue;
      schedule = std::move(candidate);
      smaller = true;
      break;
    }
  }
  return check(schedule, c) + "\n" + print_schedule(schedule);
}

void expect_equal(const Schedule& schedule, const Case& c, std::uint64_t seed) {
  const std::string problem = check(schedule, c);
  if (!problem.empty()) FAIL() << "seed " << seed << ": " << problem << "\nshrunk: " << shrunk(schedule, c);
}

TEST(Engine, ReplayEventAndRefereeAgreeOnAllSchedulesOfUpToFourOps) {
  std::uint64_t failures = 0;
  const std::uint64_t count = test::for_each_small_schedule(4, [&](const Schedule& schedule) {
    for (EngineChoice engine : {EngineChoice::Replay, EngineChoice::Event}) {
      const Case c{engine, 0, false};
      if (failures == 0 && !check(schedule, c).empty()) {
        ++failures;
        ADD_FAILURE() << shrunk(schedule, c);
      }
    }
  });
  std::cout << count << " schedules\n";
  EXPECT_GT(count, 10000u);
}

TEST(Engine, ReplayEventAndRefereeAgreeOnRandomSchedules) {
  std::uint64_t deadlocks = 0;
  for (std::uint64_t seed = 1; seed <= 10000 && !HasFailure(); ++seed) {
    const auto disturb = seed % 4 == 0 ? test::Disturb::Swap : test::Disturb::No;
    const Schedule schedule = test::random_schedule(seed, seed <= 9800 ? 100 : 2000, disturb);
    expect_equal(schedule, {EngineChoice::Replay, static_cast<std::int64_t>(seed % 3), false}, seed);
    expect_equal(schedule, {EngineChoice::Event, static_cast<std::int64_t>(seed % 3), false}, seed);
    const TestCosts costs(0);
    deadlocks += simulate(schedule, costs, nullptr, {}).outcome.status == Status::Deadlock ? 1u : 0u;
  }
  std::cout << deadlocks << " of 10000 deadlock\n";
  EXPECT_GT(deadlocks, 0u);
}

TEST(Engine, EventEqualsRefereeWithSharedLinks) {
  for (std::uint64_t seed = 1; seed <= 1500 && !HasFailure(); ++seed)
    expect_equal(test::random_schedule(seed, 80, test::Disturb::No), {EngineChoice::Event, static_cast<std::int64_t>(seed % 3), true}, seed);
}

TEST(Engine, FoldingIsExactAndRepetitionsAgreeBetweenAgendas) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const Schedule schedule = test::random_schedule(seed, 100, test::Disturb::No);
    const TestCosts costs(1);
    SimulateOptions replay, event;
    replay.steps = event.steps = 3;
    event.engine = EngineChoice::Event;
    const Trace a = simulate(schedule, costs, nullptr, replay), b = simulate(schedule, costs, nullptr, event);
    ASSERT_EQ(a.digest(), b.digest()) << "seed " << seed;
    ASSERT_EQ(a.step_time, b.step_time) << "seed " << seed;
  }
}

}  // namespace
}  // namespace steptwin
