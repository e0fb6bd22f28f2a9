// Tests of the tests: a fault put into a schedule, or into what is expected, is seen by the comparisons that the other tests rest on.
#include <gtest/gtest.h>

#include <optional>

#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "tests/support/random_schedule.h"
#include "tests/support/referee.h"
#include "tests/support/rehearsal.h"

namespace steptwin {
namespace {

Trace engine(const Schedule& schedule) {
  SimulateOptions options;
  options.fold = FoldChoice::Off;
  return simulate(schedule, test::PlainCosts(1), nullptr, options);
}

// A faulty copy; none where the fault does not apply.
using Fault = std::optional<Schedule> (*)(const Schedule&, test::Random&);

std::optional<Schedule> drop_dependency(const Schedule& schedule, test::Random& random) {
  if (schedule.deps.empty()) return std::nullopt;
  Schedule out = schedule;
  const std::uint32_t gone = random.below(static_cast<std::uint32_t>(out.deps.size()));
  out.deps.erase(out.deps.begin() + gone);
  for (std::uint32_t& offset : out.dep_offsets) offset -= offset > gone ? 1 : 0;
  return out;
}

std::optional<Schedule> lengthen_an_op(const Schedule& schedule, test::Random& random) {
  Schedule out = schedule;
  Op& op = out.ops[random.below(static_cast<std::uint32_t>(out.ops.size()))];
  if (!op.lane.valid()) return std::nullopt;
  op.given += Duration(1);
  return out;
}

std::optional<Schedule> move_to_another_lane(const Schedule& schedule, test::Random& random) {
  Schedule out = schedule;
  const OpId id(random.below(static_cast<std::uint32_t>(out.ops.size())));
  Op& op = out.ops[id.value];
  const std::size_t lanes = schedule.program_of(id).lanes.size();
  if (!op.lane.valid() || op.group.valid() || lanes < 2) return std::nullopt;
  op.lane = LaneId((op.lane.value + 1) % static_cast<std::uint32_t>(lanes));
  return out;
}

std::optional<Schedule> wait_for_another_op(const Schedule& schedule, test::Random& random) {
  Schedule out = schedule;
  for (std::uint32_t i = random.below(static_cast<std::uint32_t>(out.ops.size())); i < out.ops.size(); ++i) {
    auto* wait = std::get_if<HostWait>(&out.ops[i].body);
    if (wait == nullptr || wait->target.value + 1 >= i) continue;
    wait->target = OpId(i - 1);
    return out;
  }
  return std::nullopt;
}

std::optional<Schedule> dissolve_a_group(const Schedule& schedule, test::Random& random) {
  Schedule out = schedule;
  for (std::uint32_t i = random.below(static_cast<std::uint32_t>(out.ops.size())); i + 1 < out.ops.size(); ++i) {
    const GroupId group = out.ops[i].group;
    if (!group.valid() || out.ops[i + 1].group != group) continue;
    for (Op& op : out.ops)
      if (op.group == group) op.group = GroupId();
    return out;
  }
  return std::nullopt;
}

// Of 400 schedules, how often does the referee of the sound schedule object to the engine's run of the faulty one?
std::pair<int, int> seen(Fault fault) {
  int applied = 0, found = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const Schedule schedule = test::random_schedule(seed, 60, test::Disturb::No);
    test::Random random(seed);
    const auto faulty = fault(schedule, random);
    if (!faulty) continue;
    ++applied;
    found += test::difference(schedule, engine(*faulty), test::referee(schedule, 1)).empty() ? 0 : 1;
    EXPECT_EQ(test::difference(*faulty, engine(*faulty), test::referee(*faulty, 1)), "") << "both have the same fault: seed " << seed;
  }
  return {applied, found};
}

TEST(SeededFaults, TheRefereeSeesWhatChangesTheTimes) {
  const struct {
    const char* name;
    Fault fault;
    int at_least;  // percent; a dependency that binds nothing, for one, may go unseen
  } kFaults[] = {
      {"a dependency less", drop_dependency, 5},           {"an op 1 ns longer", lengthen_an_op, 60},
      {"an op on another lane", move_to_another_lane, 40}, {"a wait for another op", wait_for_another_op, 60},
      {"a group dissolved", dissolve_a_group, 60},
  };
  for (const auto& f : kFaults) {
    const auto [applied, found] = seen(f.fault);
    std::cout << f.name << ": seen in " << found << " of " << applied << "\n";
    EXPECT_GT(applied, 20) << f.name;
    EXPECT_GE(found * 100, f.at_least * applied) << f.name;
  }
}

// The first message of a pair exchanged with the second: sizes differ, so verify objects; the engine moves them in the wrong order.
TEST(SeededFaults, SwappedMessagesAreSeen) {
  const std::string head = "mesh pp 2\ncomm c axes pp\nprogram p ranks 0\n lane n network\n buffer a 4B resident\n buffer b 8B resident\n";
  const std::string tail =
      "program q ranks 1\n lane n network\n buffer a 4B resident\n buffer b 8B resident\n"
      " 0 recv on c from 0 write a lane n time 4ns\n 1 recv on c from 0 write b lane n time 8ns\n";
  const Schedule sound =
      parse_schedule(head + " 0 send on c to 1 read a lane n time 4ns\n 1 send on c to 1 read b lane n time 8ns\n" + tail, "t");
  const Schedule faulty =
      parse_schedule(head + " 0 send on c to 1 read b lane n time 8ns\n 1 send on c to 1 read a lane n time 4ns\n" + tail, "t");
  EXPECT_TRUE(verify(sound).empty());
  const auto problems = verify(faulty);
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems.front().code, "SIZE");
  EXPECT_EQ(test::difference(sound, engine(sound), test::referee(sound, 1)), "");
  EXPECT_NE(test::difference(sound, engine(faulty), test::referee(sound, 1)), "");
}

// An access less, where it is the first or last one of its buffer or on another lane, changes a life, hence a curve.
TEST(SeededFaults, AnAccessLessChangesACurve) {
  int applied = 0, found = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Schedule schedule = test::random_memory_schedule(seed, 40);
    if (schedule.accesses.empty()) continue;
    Schedule faulty = schedule;
    test::Random random(seed);
    const std::uint32_t gone = random.below(static_cast<std::uint32_t>(faulty.accesses.size()));
    faulty.accesses.erase(faulty.accesses.begin() + gone);
    for (std::uint32_t& offset : faulty.access_offsets) offset -= offset > gone ? 1 : 0;
    ++applied;
    const Trace trace = engine(schedule), other = engine(faulty);
    bool differs = trace.samples.size() != other.samples.size();
    for (std::size_t i = 0; !differs && i < trace.samples.size(); ++i)
      differs = trace.samples[i].bytes != other.samples[i].bytes || trace.samples[i].at != other.samples[i].at;
    found += differs ? 1 : 0;
  }
  EXPECT_GE(found * 100, 25 * applied) << found << " of " << applied;
}

// A hop that costs 1 ns more, a stage that costs 1 ns more: the closed forms of exact_times_test are off by what they say.
TEST(SeededFaults, ClosedFormsFeelOneNanosecond) {
  test::GivenPipeline g;
  g.p = 4;
  g.m = 8;
  const std::int64_t exact = test::step_ns(g);
  g.hop_ns = 1;
  EXPECT_EQ(test::step_ns(g) - exact, 2 * 3 * 3 - 2);
  g.hop_ns = 0;
  g.forward_ns += 1;
  EXPECT_EQ(test::step_ns(g) - exact, 8 + 4 - 1);
}

}  // namespace
}  // namespace steptwin
