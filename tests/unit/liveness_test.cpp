#include "schedule/ir/liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/ir/text.h"

namespace steptwin {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> curve(const Schedule& s, Space space) {
  std::vector<std::int64_t> out;
  for (Bytes b : allocated_curve(s, s.programs.back(), space)) out.push_back(b.value);
  return out;
}

Schedule with_ops(const std::string& ops) {
  return parse_schedule(R"(mesh pp 1
program p ranks all
  lane a compute
  lane b copy_up
  buffer w param 100B resident
  buffer x 10B
  buffer y 1B
  buffer h pinned 7B
  buffer ok 4B
  buffer unused 1000B
)" + ops,
                        "t");
}

TEST(Liveness, FromFirstToLastAccess) {
  const Schedule s = with_ops(R"(
  0 compute write x lane a
  1 compute read x write y lane b
  2 compute hold x lane a
  3 compute read y lane a
)");
  const auto lives = lifetimes(s, s.programs[0]);
  EXPECT_EQ(lives[0], Lifetime());  // resident
  EXPECT_EQ(lives[1], (Lifetime{0, 2, LaneId(0)}));
  EXPECT_EQ(lives[2], (Lifetime{1, 3, LaneId(1)}));  // home: the lane of the first access
  EXPECT_EQ(lives[5], Lifetime());                   // never accessed, never allocated
  EXPECT_THAT(curve(s, Space::Device), ElementsAre(110, 111, 111, 101));
  EXPECT_EQ(resident_bytes(s.programs[0], Space::Device), Bytes(100));
}

TEST(Liveness, SpacesAreApart) {
  const Schedule s = with_ops("  0 copy read w write h lane b bytes 7B\n  1 compute lane a\n");
  EXPECT_THAT(curve(s, Space::Device), ElementsAre(100, 100));
  EXPECT_THAT(curve(s, Space::Pinned), ElementsAre(7, 0));
  EXPECT_THAT(curve(s, Space::Storage), ElementsAre(0, 0));
}

TEST(Liveness, HostWaitNeverBeginsButExtends) {
  const Schedule s = with_ops(R"(
  0 compute lane a
  1 host_wait for 0 hold x y
  2 compute write x lane b
  3 host_wait for 2 hold x
  4 compute lane a
)");
  EXPECT_EQ(lifetimes(s, s.programs[0])[1], (Lifetime{2, 3, LaneId(1)}));
  EXPECT_EQ(lifetimes(s, s.programs[0])[2], Lifetime());  // only a host_wait touches y
  EXPECT_THAT(curve(s, Space::Device), ElementsAre(100, 100, 110, 110, 100));
}

// Dropped behind op 1, x could become y: the group would receive into what it still sends.
TEST(Liveness, AGroupDropsBehindItsLastOp) {
  const Schedule s = parse_schedule(R"(mesh pp 2
comm c axes pp
program p ranks all
  lane a network
  buffer x 10B
  buffer y 10B
  buffer z 10B
  0 recv on c from -1 write x
  1 send on c to +1 read x group 3
  2 recv on c from -1 write y group 3
  3 send on c to +1 read y group 4
  4 recv on c from -1 write z group 4
)", "t");
  EXPECT_EQ(lifetimes(s, s.programs[0])[0], (Lifetime{0, 2, LaneId(0)}));
  EXPECT_EQ(lifetimes(s, s.programs[0])[1], (Lifetime{2, 4, LaneId(0)}));
  EXPECT_THAT(curve(s, Space::Device), ElementsAre(10, 10, 20, 10, 20));
}

TEST(Liveness, GuardIsAnAccess) {
  const Schedule s = with_ops("  0 compute write ok lane a\n  1 compute lane a\n  2 compute lane a when ok\n  3 compute lane a\n");
  EXPECT_THAT(curve(s, Space::Device), ElementsAre(104, 104, 104, 100));
}

// In-flight activations of 1F1B: stage r of p holds at most min(m, p - r) micro-batches (specs/schedules.md 2.2).
TEST(Liveness, OneForwardOneBackwardHoldsMinOfMAndDepth) {
  constexpr int kStages = 4, kMicroBatches = 6;
  for (int stage = 0; stage < kStages; ++stage) {
    std::string buffers, ops;
    int number = 0;
    const auto forward = [&](int m) {
      ops += std::to_string(number++) + " compute F mb" + std::to_string(m) + " write a" + std::to_string(m) + "\n";
    };
    const auto backward = [&](int m) {
      ops += std::to_string(number++) + " compute B mb" + std::to_string(m) + " read a" + std::to_string(m) + "\n";
    };
    for (int m = 0; m < kMicroBatches; ++m) buffers += "buffer a" + std::to_string(m) + " activation 1B\n";
    const int warm_up = std::min(kMicroBatches, kStages - stage - 1);
    for (int m = 0; m < warm_up; ++m) forward(m);
    for (int m = warm_up; m < kMicroBatches; ++m) forward(m), backward(m - warm_up);
    for (int m = kMicroBatches - warm_up; m < kMicroBatches; ++m) backward(m);
    const Schedule s = parse_schedule("mesh pp 1\nprogram p ranks all\nlane compute compute\n" + buffers + ops, "t");
    const auto bytes = curve(s, Space::Device);
    EXPECT_EQ(*std::max_element(bytes.begin(), bytes.end()), std::min(kMicroBatches, kStages - stage)) << "stage " << stage;
    EXPECT_EQ(bytes.back(), 1);  // the last backward still reads its activation; it is dropped after
  }
}

// s begins at its first access by an op with a lane, in the run's first repetition, and stays.
TEST(Liveness, LazyBuffersBeginOnceAndStay) {
  const Schedule s = parse_schedule(R"(mesh pp 1
program p ranks all
  lane a compute
  buffer w param 100B resident
  buffer x 10B
  buffer s optimizer 1000B lazy
  buffer t optimizer 5B lazy
  0 compute write x lane a
  1 host_wait for 0 hold s
  2 compute read x update s lane a
  3 compute update s lane a
  4 compute lane a
)",
                                    "t");
  const Program& p = s.programs[0];
  EXPECT_EQ(lifetimes(s, p, Repetition::First)[2], (Lifetime{2, Lifetime::kStays, LaneId(0)}));
  EXPECT_EQ(lifetimes(s, p)[2], Lifetime());
  EXPECT_EQ(lifetimes(s, p, Repetition::First)[3], Lifetime()) << "nobody uses it";
  EXPECT_EQ(resident_bytes(p, Space::Device, Repetition::First), Bytes(100));
  EXPECT_EQ(resident_bytes(p, Space::Device), Bytes(1105));
  const auto bytes = [&](Repetition repetition) {
    std::vector<std::int64_t> out;
    for (const Bytes b : allocated_curve(s, p, Space::Device, repetition)) out.push_back(b.value);
    return out;
  };
  EXPECT_THAT(bytes(Repetition::First), ElementsAre(110, 110, 1110, 1100, 1100));
  EXPECT_THAT(bytes(Repetition::Later), ElementsAre(1115, 1115, 1115, 1105, 1105));
  EXPECT_EQ(parse_schedule(print_schedule(s), "t"), s);
}

}  // namespace
}  // namespace steptwin
