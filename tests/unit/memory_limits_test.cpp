// Device memory that runs out, by hand: hosts that wait for room, out of memory, deadlock, pools that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/ir/text.h"
#include "tests/support/referee.h"
#include "tests/support/trace_view.h"

namespace steptwin {
namespace {

using test::span_of;
using test::when;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kMiB = 1 << 20;

Machine machine_with(Bytes memory) {
  Machine machine;
  machine.device.memory = memory;
  return machine;
}

Trace run(const std::string& text, const Machine& machine, SimulateOptions options = {}, std::int64_t launch = 0) {
  return simulate(parse_schedule(text, "t.sched"), test::PlainCosts(launch), &machine, options);
}

std::int64_t peak(const Trace& trace, Curve curve, std::uint32_t rank = 0) {
  for (const MemoryPeak& p : trace.peaks)
    if (p.rank.value == rank && p.space == Space::Device && p.curve == curve) return p.bytes.value;
  return -1;
}

// a is copied away while the next op already wants b: both fit one after the other, not together.
const std::string kOffload = R"(mesh pp 1
program p ranks all
  lane c compute
  lane down copy_down
  buffer a 60MiB activation
  buffer h 60MiB activation pinned
  buffer b 60MiB activation
  0 compute write a lane c time 10ns
  1 copy read a write h lane down after 0 time 100ns
  2 compute lane c time 1ns
  3 compute write b lane c time 10ns
  4 compute lane c time 5ns
)";

TEST(MemoryLimit, WithRoomTheHostRunsAhead) {
  const Trace trace = run(kOffload, machine_with(Bytes(120 * kMiB)));
  EXPECT_EQ(trace.outcome.status, Status::Ok);
  EXPECT_EQ(ns(trace.step_time), 110);
  EXPECT_EQ(when(trace, 0, 3), "11-21");
  EXPECT_EQ(ns(span_of(trace, 0, 3).issue), 0);
  EXPECT_EQ(peak(trace, Curve::Allocated), 60 * kMiB);
  EXPECT_EQ(peak(trace, Curve::Active), 120 * kMiB);
  EXPECT_THAT(trace.warnings, IsEmpty());
}

// The host waits before op 3 until the copy has ended at 110; what comes after is issued later, too.
TEST(MemoryLimit, ActiveOverCapacityMakesTheHostWait) {
  const Trace trace = run(kOffload, machine_with(Bytes(100 * kMiB)));
  ASSERT_EQ(trace.outcome.status, Status::Ok) << trace.outcome.text;
  EXPECT_EQ(ns(span_of(trace, 0, 2).issue), 0);
  EXPECT_EQ(ns(span_of(trace, 0, 3).issue), 110);
  EXPECT_EQ(ns(span_of(trace, 0, 4).issue), 110);
  EXPECT_EQ(when(trace, 0, 3), "110-120");
  EXPECT_EQ(ns(trace.step_time), 125);
  EXPECT_EQ(peak(trace, Curve::Active), 60 * kMiB);
  EXPECT_EQ(peak(trace, Curve::Reserved), 60 * kMiB);
  EXPECT_EQ(trace.engine, "event");
  EXPECT_THAT(trace.warnings, ElementsAre(HasSubstr("waits for memory"))) << "reserved fits, now that the host waits";
}

// The host is not asked late: it waits from the instant it comes to op 3 (3 launches = 12 ns), and op 4 on an idle lane is issued only
// then.
TEST(MemoryLimit, WhatWaitsBehindTheStallIsIssuedLate) {
  const std::string text = R"(mesh pp 1
program p ranks all
  lane c compute
  lane down copy_down
  lane idle copy_up
  buffer a 60MiB activation
  buffer h 60MiB activation pinned
  buffer b 60MiB activation
  0 compute write a lane c time 10ns
  1 copy read a write h lane down after 0 time 20ns
  2 compute lane c time 1us
  3 compute write b lane c time 10ns
  4 copy lane idle time 5ns
)";
  const Trace trace = run(text, machine_with(Bytes(100 * kMiB)), {}, 4);
  ASSERT_EQ(trace.outcome.status, Status::Ok) << trace.outcome.text;
  EXPECT_EQ(when(trace, 0, 1), "14-34");
  EXPECT_EQ(ns(span_of(trace, 0, 3).issue), 34 + 4);
  EXPECT_EQ(when(trace, 0, 4), "42-47") << "op 3 itself runs at 1014, but its memory is there at 34";
  EXPECT_EQ(when(trace, 0, 3), "1014-1024");
  EXPECT_EQ(peak(trace, Curve::Active), 60 * kMiB);
}

// Rank 0 waits for room for b before it issues the send that rank 1 wants first; a is freed only by the send that rank 1 wants second.
const std::string kBehind = R"(mesh pp 2
comm x axes pp
comm y axes pp
program p ranks 0
  lane c compute
  lane n network
  lane k network
  buffer a 60MiB activation
  buffer b 60MiB activation
  0 compute write a lane c time 10ns
  1 send on x to 1 read a lane n after 0 time 5ns
  2 compute write b lane c time 10ns
  3 send on y to 1 read b lane k after 2 time 5ns
program q ranks 1
  lane n network
  buffer a 60MiB recv pinned resident
  buffer b 60MiB recv pinned resident
  0 recv on y from 0 write b lane n time 5ns
  1 recv on x from 0 write a lane n time 5ns
)";

TEST(MemoryLimit, AStallThatWaitsForOpsBehindItIsADeadlock) {
  EXPECT_EQ(run(kBehind, machine_with(Bytes(120 * kMiB))).outcome.status, Status::Ok);
  const Trace trace = run(kBehind, machine_with(Bytes(119 * kMiB) + Bytes(kMiB - 1)));
  EXPECT_EQ(trace.outcome.status, Status::Deadlock);
  EXPECT_THAT(trace.outcome.text, HasSubstr("memory"));
  EXPECT_THAT(trace.outcome.details, Contains(HasSubstr("rank 0 stalls (wait_mem) before `2 compute write b")));
  EXPECT_EQ(when(trace, 0, 0), "0-10") << "what ran is there";
  EXPECT_EQ(when(trace, 0, 1), "none");
}

TEST(MemoryLimit, AllocatedOverCapacityIsOutOfMemoryWhateverTheTiming) {
  const std::string text = R"(mesh pp 2
program p ranks 0
  lane c compute
  buffer a 99MiB activation
  0 compute write a lane c time 1us
program q ranks 1
  lane c compute
  buffer w 50MiB param resident
  buffer a 40MiB activation
  buffer b 20MiB workspace
  0 compute read w write a lane c time 3ns
  1 compute read a write b lane c time 3ns
)";
  const Trace trace = run(text, machine_with(Bytes(100 * kMiB)), {}, 7);
  EXPECT_EQ(trace.outcome.status, Status::OutOfMemory);
  EXPECT_EQ(trace.outcome.rank, RankId(1));
  EXPECT_EQ(trace.outcome.op, OpId(2));
  EXPECT_EQ(trace.outcome.requested.value, 20 * kMiB);
  EXPECT_EQ(trace.outcome.in_use.value, 90 * kMiB);
  EXPECT_EQ(trace.outcome.capacity.value, 100 * kMiB);
  EXPECT_THAT(trace.outcome.text, HasSubstr("rank 1"));
  EXPECT_THAT(trace.outcome.details, Contains(HasSubstr("1 compute read a write b")));
  EXPECT_THAT(trace.outcome.details, Contains(testing::AllOf(HasSubstr("param"), HasSubstr("activation"), HasSubstr("workspace"))));
  EXPECT_EQ(trace.spans.size(), 3u) << "the times are there all the same";
  EXPECT_EQ(peak(trace, Curve::Allocated, 1), 110 * kMiB);
}

TEST(MemoryLimit, ResidentBuffersAloneOverCapacity) {
  const std::string text =
      "mesh pp 1\nprogram p ranks all\n lane c compute\n buffer w 101MiB param resident\n 0 compute read w lane c time 1ns\n";
  const Trace trace = run(text, machine_with(Bytes(100 * kMiB)));
  EXPECT_EQ(trace.outcome.status, Status::OutOfMemory);
  EXPECT_THAT(trace.outcome.details, Contains(HasSubstr("resident buffers alone")));
}

// The pools of two lanes do not lend to each other: 120 MiB reserved for 60 MiB in use.
TEST(MemoryLimit, ReservedOverCapacityIsAWarning) {
  const std::string text = R"(mesh pp 1
program p ranks all
  lane c compute
  lane d compute
  buffer a 60MiB activation
  buffer b 60MiB activation
  0 compute write a lane c time 10ns
  1 compute read a lane c time 10ns
  2 compute write b lane d after 1 time 10ns
)";
  const Trace trace = run(text, machine_with(Bytes(100 * kMiB)));
  EXPECT_EQ(trace.outcome.status, Status::Ok);
  EXPECT_EQ(trace.engine, "replay") << "the host does not wait for it";
  EXPECT_EQ(ns(trace.step_time), 30);
  EXPECT_EQ(peak(trace, Curve::Active), 60 * kMiB);
  EXPECT_EQ(peak(trace, Curve::Reserved), 120 * kMiB);
  EXPECT_THAT(trace.warnings, ElementsAre(HasSubstr("flushing")));
  EXPECT_THAT(run(text, machine_with(Bytes(120 * kMiB))).warnings, IsEmpty());
  EXPECT_THAT(run(text, machine_with(Bytes(0))).warnings, IsEmpty()) << "0: no limit";
}

// The second step's curves stand at the second step's instants.
TEST(MemoryLimit, EveryStepAllocatesOnItsOwnTime) {
  const std::string text =
      "mesh pp 1\nprogram p ranks all\n lane c compute\n buffer a 8B activation\n 0 compute write a lane c time 10ns\n";
  SimulateOptions options;
  options.steps = 2;
  const Trace trace = run(text, machine_with(Bytes(0)), options, 3);
  std::vector<std::int64_t> live, allocated;  // begins and ends of the buffer
  for (const MemorySample& s : trace.samples) {
    if (s.category_index != static_cast<std::uint8_t>(Category::Activation)) continue;
    if (s.curve == Curve::Live) live.push_back(ns(s.at));
    if (s.curve == Curve::Allocated) allocated.push_back(ns(s.at));
  }
  EXPECT_THAT(live, ElementsAre(3, 13, 13, 23));
  EXPECT_THAT(allocated, ElementsAre(0, 3, 3, 6)) << "the host does not wait for the step before";
}

// The state s is made by the first step's last op: the first step never holds it beside the activation x, every later one does.
const std::string kLazy = R"(mesh pp 1
program p ranks all
  lane c compute
  buffer w param 10MiB resident
  buffer s optimizer 40MiB lazy
  buffer x activation 60MiB
  0 compute write x lane c time 10ns
  1 compute read x lane c time 10ns
  2 compute update s read w lane c time 5ns
)";

TEST(MemoryLimit, LazyStateRaisesThePeakOfTheSecondStep) {
  SimulateOptions options;
  EXPECT_EQ(peak(run(kLazy, machine_with(Bytes(200 * kMiB)), options), Curve::Allocated), 70 * kMiB);
  options.steps = 2;
  for (const Curve curve : {Curve::Allocated, Curve::Active, Curve::Reserved})
    EXPECT_EQ(peak(run(kLazy, machine_with(Bytes(200 * kMiB)), options), curve), 110 * kMiB) << name_of(curve);
}

TEST(MemoryLimit, LazyStateCanRunOutOfMemoryInTheSecondStepOnly) {
  SimulateOptions options;
  EXPECT_EQ(run(kLazy, machine_with(Bytes(100 * kMiB)), options).outcome.status, Status::Ok);
  options.steps = 3;
  for (const EngineChoice engine : {EngineChoice::Replay, EngineChoice::Event}) {
    options.engine = engine;
    const Trace trace = run(kLazy, machine_with(Bytes(100 * kMiB)), options);
    ASSERT_EQ(trace.outcome.status, Status::OutOfMemory);
    EXPECT_EQ(trace.outcome.op, OpId(0));
    EXPECT_EQ(trace.outcome.in_use, Bytes(50 * kMiB));
    EXPECT_EQ(trace.outcome.requested, Bytes(60 * kMiB));
    EXPECT_THAT(trace.outcome.text, HasSubstr("rank 0"));
  }
}

// The host of the second step waits for room that a copy still takes, beside the state of the first one.
TEST(MemoryLimit, LazyStateCountsWhereTheHostWaitsForRoom) {
  const std::string text = R"(mesh pp 1
program p ranks all
  lane c compute
  lane down copy_down
  buffer s optimizer 40MiB lazy
  buffer a activation 30MiB
  buffer h activation 30MiB pinned
  buffer b activation 30MiB
  0 compute write a lane c time 10ns
  1 copy read a write h lane down after 0 time 100ns
  2 compute lane c time 1ns
  3 compute write b lane c time 10ns
  4 compute update s lane c time 5ns
)";
  SimulateOptions options;
  options.steps = 2;
  const Trace trace = run(text, machine_with(Bytes(100 * kMiB)), options);
  ASSERT_EQ(trace.outcome.status, Status::Ok) << trace.outcome.text;
  const Trace tight = run(text, machine_with(Bytes(90 * kMiB)), options);
  ASSERT_EQ(tight.outcome.status, Status::Ok) << tight.outcome.text;
  EXPECT_EQ(peak(tight, Curve::Active), 70 * kMiB);
  EXPECT_EQ(peak(tight, Curve::Allocated), 70 * kMiB);
}

}  // namespace
}  // namespace steptwin
