// Replay agenda == event agenda == slow reference, op by op, on exhaustive small and random large schedules.
#include <gtest/gtest.h>

#include "schedule/ir/text.h"
#include "tests/support/random_schedule.h"
#include "tests/support/referee.h"

namespace steptwin {
namespace {

struct Case {
  EngineChoice engine = EngineChoice::Replay;
  std::int64_t launch = 0;
  bool links = false;
  std::uint32_t slots = 0;
  bool for_everything = false;
  std::int64_t turnaround = 0;
  double contention = 0;
};

// One node.
Machine shared_machine(const Case& c) {
  Machine machine;
  machine.devices_per_node = 64;
  machine.sharing = c.links ? LinkSharing::Fair : LinkSharing::None;
  machine.host.compute_slots = static_cast<int>(c.slots);
  machine.host.slot_scope = c.for_everything ? SlotScope::Everything : SlotScope::Compute;
  machine.host.turnaround = Duration(c.turnaround);
  machine.host.compute_contention = c.contention;
  return machine;
}

std::string check(const Schedule& schedule, const Case& c) {
  const test::PlainCosts costs(c.launch);
  SimulateOptions options;
  options.engine = c.engine;
  options.fold = FoldChoice::Off;
  const Machine machine = shared_machine(c);
  const Trace trace = simulate(schedule, costs, c.links || c.slots > 0 || c.contention > 0 ? &machine : nullptr, options);
  return test::difference(schedule, trace, test::referee(schedule, c.launch, {c.links, c.slots, 0, c.for_everything, c.turnaround, c.contention}));
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
      const Case c{engine, 0, false, 0};
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
    expect_equal(schedule, {EngineChoice::Replay, static_cast<std::int64_t>(seed % 3), false, 0}, seed);
    expect_equal(schedule, {EngineChoice::Event, static_cast<std::int64_t>(seed % 3), false, 0}, seed);
    const test::PlainCosts costs(0);
    deadlocks += simulate(schedule, costs, nullptr, {}).outcome.status == Status::Deadlock ? 1u : 0u;
  }
  std::cout << deadlocks << " of 10000 deadlock\n";
  EXPECT_GT(deadlocks, 0u);
}

TEST(Engine, EventEqualsRefereeWithSharedLinks) {
  for (std::uint64_t seed = 1; seed <= 1500 && !HasFailure(); ++seed)
    expect_equal(test::random_schedule(seed, 80, test::Disturb::No), {EngineChoice::Event, static_cast<std::int64_t>(seed % 3), true, 0},
                 seed);
}

TEST(Engine, EventEqualsRefereeWithComputeSlots) {
  for (std::uint64_t seed = 1; seed <= 1500 && !HasFailure(); ++seed) {
    const auto launch = static_cast<std::int64_t>(seed % 3);
    expect_equal(test::random_schedule(seed, 60, test::Disturb::No),
                 {EngineChoice::Event, launch, seed % 5 == 0, 1 + static_cast<std::uint32_t>(seed % 2)}, seed);
  }
}

// As the CPU executor runs: one thread (or several) computes, copies and transfers, and needs a moment to take up an op.
TEST(Engine, EventEqualsRefereeWithSlotsForEverything) {
  for (std::uint64_t seed = 1; seed <= 1500 && !HasFailure(); ++seed) {
    const auto launch = static_cast<std::int64_t>(seed % 3), turnaround = static_cast<std::int64_t>(seed % 4);
    expect_equal(test::random_schedule(seed, 60, seed % 7 == 0 ? test::Disturb::Swap : test::Disturb::No),
                 {EngineChoice::Event, launch, false, 1 + static_cast<std::uint32_t>(seed % 2), true, turnaround}, seed);
  }
}

// As ranks that share a GPU: each further one that computes slows all of them, beside shared links or not.
TEST(Engine, EventEqualsRefereeWithContention) {
  for (std::uint64_t seed = 1; seed <= 1500 && !HasFailure(); ++seed) {
    const auto launch = static_cast<std::int64_t>(seed % 3);
    const double contention = seed % 4 == 0 ? 1 : 0.05 * static_cast<double>(seed % 4);
    expect_equal(test::random_schedule(seed, 60, test::Disturb::No), {EngineChoice::Event, launch, seed % 5 == 0, 0, false, 0, contention}, seed);
  }
}

TEST(Engine, FoldingIsExactAndRepetitionsAgreeBetweenAgendas) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const Schedule schedule = test::random_schedule(seed, 100, test::Disturb::No);
    const test::PlainCosts costs(1);
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
