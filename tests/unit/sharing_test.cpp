// What ranks share, by hand: the compute slots of a node, and links with more than one transfer.
#include <gtest/gtest.h>

#include "schedule/ir/text.h"
#include "tests/support/referee.h"
#include "tests/support/trace_view.h"

namespace steptwin {
namespace {

using test::span_of;
using test::when;

Trace run(const std::string& text, const Machine& machine, const SimulateOptions& options = {}) {
  return simulate(parse_schedule(text, "t.sched"), test::PlainCosts(0), &machine, options);
}

// ---- contention -----------------------------------------------------------------------------------------------------------

Machine contended(double contention) {
  Machine machine;
  machine.host.compute_contention = contention;
  return machine;
}

const std::string kPairOfRanks = R"(mesh dp 2
program p ranks 0
  lane c compute
  0 compute lane c time 10ns
program q ranks 1
  lane c compute
  lane down copy_down
  0 compute lane c time 4ns
  1 copy lane down after 0 time 6ns
)";

// At c = 1 both go at half speed until rank 1 has done its 4 at 8; rank 0 has 6 left and is alone: 14. The copy is not slowed.
TEST(Contention, ComputeOpsOfANodeSlowEachOther) {
  const Trace trace = run(kPairOfRanks, contended(1));
  EXPECT_EQ(when(trace, 0, 0), "0-14");
  EXPECT_EQ(when(trace, 1, 0), "0-8");
  EXPECT_EQ(when(trace, 1, 1), "8-14");
  EXPECT_EQ(trace.engine, "event");
}

// c = 0.25: speed 0.8 for two. Rank 1 ends at 5, rank 0 has done 4 and is alone: 11.
TEST(Contention, SpeedIsOneOverOnePlusCTimesTheOthers) {
  const Trace trace = run(kPairOfRanks, contended(0.25));
  EXPECT_EQ(when(trace, 1, 0), "0-5");
  EXPECT_EQ(when(trace, 0, 0), "0-11");
}

TEST(Contention, EndsAtTheNode) {
  Machine machine = contended(1);
  machine.devices_per_node = 1;
  const Trace trace = run(kPairOfRanks, machine);
  EXPECT_EQ(when(trace, 0, 0), "0-10");
  EXPECT_EQ(when(trace, 1, 0), "0-4");
}

// ---- compute slots ----------------------------------------------------------------------------------------------------------

Machine slots(int count, int devices_per_node = 8) {
  Machine machine;
  machine.host.compute_slots = count;
  machine.devices_per_node = devices_per_node;
  return machine;
}

const std::string kThreeRanks = R"(mesh dp 3
program p ranks 0
  lane c compute
  0 compute lane c time 10ns
  1 compute lane c time 5ns
program q ranks 1
  lane c compute
  0 compute lane c time 4ns
  1 compute lane c time 7ns
program r ranks 2
  lane c compute
  0 compute lane c time 3ns
)";

// One slot: the order is (ready, rank, op). At 0 all are ready: rank 0, 1, 2; then rank 0's second (ready 10), then rank 1's (ready 14).
TEST(ComputeSlots, OneSlotSerialisesByReadyThenRankThenOp) {
  const Trace trace = run(kThreeRanks, slots(1));
  EXPECT_EQ(when(trace, 0, 0), "0-10");
  EXPECT_EQ(when(trace, 1, 0), "10-14");
  EXPECT_EQ(when(trace, 2, 0), "14-17");
  EXPECT_EQ(when(trace, 0, 1), "17-22");
  EXPECT_EQ(when(trace, 1, 1), "22-29");
  EXPECT_EQ(ns(trace.step_time), 29) << "the sum of all durations";
  EXPECT_EQ(trace.engine, "event");
}

// Two slots: ranks 0 and 1 at once; rank 2 at 4 in the slot of rank 1, whose second op (ready at 4) comes after it at 7, till 14; rank 0's
// second (ready at 10) finds the other slot free at 10.
TEST(ComputeSlots, TwoSlots) {
  const Trace trace = run(kThreeRanks, slots(2));
  EXPECT_EQ(when(trace, 0, 0), "0-10");
  EXPECT_EQ(when(trace, 1, 0), "0-4");
  EXPECT_EQ(when(trace, 2, 0), "4-7");
  EXPECT_EQ(when(trace, 1, 1), "7-14");
  EXPECT_EQ(when(trace, 0, 1), "10-15");
  EXPECT_EQ(ns(span_of(trace, 1, 1).ready), 4) << "ready is when the op could have begun";
}

TEST(ComputeSlots, NodesDoNotShareThem) {
  const Trace trace = run(kThreeRanks, slots(1, 1));
  EXPECT_EQ(when(trace, 1, 0), "0-4");
  EXPECT_EQ(ns(trace.step_time), 15);
}

TEST(ComputeSlots, TheLanesOfARankShareThemToo) {
  const std::string text = R"(mesh dp 1
program p ranks all
  lane c compute
  lane d compute
  0 compute lane d time 5ns
  1 compute lane c time 5ns
  2 compute lane d time 5ns
)";
  const Trace trace = run(text, slots(1));
  EXPECT_EQ(when(trace, 0, 0), "0-5");
  EXPECT_EQ(when(trace, 0, 1), "5-10");
  EXPECT_EQ(when(trace, 0, 2), "10-15");
}

// Copies and messages take no slot; a compute op of no duration takes none either.
TEST(ComputeSlots, OnlyComputeTakesThem) {
  const std::string text = R"(mesh dp 2
comm n axes dp
program p ranks 0
  lane c compute
  lane down copy_down
  lane net network
  0 compute lane c time 10ns
  1 copy lane down time 10ns
  2 send on n to 1 lane net time 10ns
program q ranks 1
  lane c compute
  lane down copy_down
  lane net network
  0 compute lane c time 0ns
  1 copy lane down time 10ns
  2 recv on n from 0 lane net time 10ns
)";
  const Trace trace = run(text, slots(1));
  EXPECT_EQ(when(trace, 0, 1), "0-10");
  EXPECT_EQ(when(trace, 1, 0), "0-0");
  EXPECT_EQ(when(trace, 1, 1), "0-10");
  EXPECT_EQ(when(trace, 1, 2), "0-10");
}

// One thread does everything: rank 0's compute, copy and message one after the other; the message waits for the thread although both ends
// are ready; the turnaround of 2 ns stands before the local ops only.
TEST(ComputeSlots, ForEverythingSerialisesCopiesAndMessagesToo) {
  const std::string text = R"(mesh dp 2
comm n axes dp
program p ranks 0
  lane c compute
  lane down copy_down
  lane net network
  0 compute lane c time 10ns
  1 copy lane down time 10ns
  2 send on n to 1 lane net time 10ns
program q ranks 1
  lane c compute
  lane net network
  0 compute lane c time 10ns
  1 recv on n from 0 lane net time 10ns
)";
  Machine machine = slots(1);
  machine.host.slot_scope = SlotScope::Everything;
  machine.host.turnaround = Duration(2);
  const Trace trace = run(text, machine);
  EXPECT_EQ(when(trace, 0, 0), "2-12");
  EXPECT_EQ(when(trace, 0, 1), "14-24");
  EXPECT_EQ(when(trace, 0, 2), "24-34") << "at 0 all are ready: the order is by rank and op";
  EXPECT_EQ(when(trace, 1, 1), "24-34") << "both ends alike";
  EXPECT_EQ(when(trace, 1, 0), "36-46");
  EXPECT_EQ(ns(span_of(trace, 1, 1).ready), 0);
}

// The two messages of a group take the only slot in turn; the group ends with the second.
TEST(ComputeSlots, MembersOfAGroupTakeThemInTurn) {
  const std::string text = R"(mesh dp 2
comm n axes dp
program p ranks 0
  lane net network
  0 send on n to 1 lane net time 10ns group 0
  1 recv on n from 1 lane net time 10ns group 0
program q ranks 1
  lane net network
  0 recv on n from 0 lane net time 10ns group 0
  1 send on n to 0 lane net time 10ns group 0
)";
  Machine machine = slots(1);
  machine.host.slot_scope = SlotScope::Everything;
  const Trace trace = run(text, machine);
  EXPECT_EQ(when(trace, 0, 0), "0-20");
  EXPECT_EQ(when(trace, 1, 1), "10-20");
}

// Two ranks of one program are no longer alike; folded all the same, the run says that it is an approximation.
TEST(ComputeSlots, AreNotFoldedUnlessAsked) {
  const std::string text = "mesh dp 2\nprogram p ranks all\n lane c compute\n 0 compute lane c time 10ns\n";
  const Trace trace = run(text, slots(1));
  EXPECT_EQ(when(trace, 1, 0), "10-20");
  EXPECT_FALSE(trace.approximate_fold);
  SimulateOptions folded;
  folded.fold = FoldChoice::On;
  const Trace approximate = run(text, slots(1), folded);
  EXPECT_EQ(ns(approximate.step_time), 10);
  EXPECT_TRUE(approximate.approximate_fold);
}

// ---- shared links -----------------------------------------------------------------------------------------------------------

Machine fair_links(int devices_per_node = 8) {
  Machine machine;
  machine.sharing = LinkSharing::Fair;
  machine.devices_per_node = devices_per_node;
  return machine;
}

std::string program(std::uint32_t rank, const std::string& ops) {
  return "program r" + std::to_string(rank) + " ranks " + std::to_string(rank) + "\n lane c compute\n lane n network\n lane k network\n" +
         ops;
}
const std::string kHead = "mesh dp 4\ncomm n axes dp\n";

// Two transfers out of rank 0 at once: each at half the rate.
TEST(SharedLinks, TwoTransfersOfOnePortTakeTwiceAsLong) {
  const std::string text = kHead + program(0, " 0 send on n to 1 lane n time 100ns\n 1 send on n to 2 lane k time 100ns\n") +
                           program(1, " 0 recv on n from 0 lane n time 100ns\n") + program(2, " 0 recv on n from 0 lane n time 100ns\n");
  const Trace trace = run(text, fair_links());
  EXPECT_EQ(when(trace, 0, 0), "0-200");
  EXPECT_EQ(when(trace, 0, 1), "0-200");
  EXPECT_EQ(when(trace, 2, 0), "0-200");
  EXPECT_EQ(when(run(text, Machine()), 0, 0), "0-100") << "not shared";
}

// The second begins at 50, when half of the first is done: both at half rate until 150, then the second has 50 left, alone.
TEST(SharedLinks, SharesFollowWhatIsInFlight) {
  const std::string text =
      kHead +
      program(0, " 0 send on n to 1 lane n time 100ns\n 1 compute lane c time 50ns\n 2 send on n to 2 lane k after 1 time 100ns\n") +
      program(1, " 0 recv on n from 0 lane n time 100ns\n") + program(2, " 0 recv on n from 0 lane n time 100ns\n");
  const Trace trace = run(text, fair_links());
  EXPECT_EQ(when(trace, 0, 0), "0-150");
  EXPECT_EQ(when(trace, 0, 2), "50-200");
}

TEST(SharedLinks, ReceivingSharesToo) {
  const std::string text = kHead + program(0, " 0 recv on n from 1 lane n time 100ns\n 1 recv on n from 2 lane k time 60ns\n") +
                           program(1, " 0 send on n to 0 lane n time 100ns\n") + program(2, " 0 send on n to 0 lane n time 60ns\n");
  const Trace trace = run(text, fair_links());
  EXPECT_EQ(when(trace, 0, 1), "0-120");
  EXPECT_EQ(when(trace, 0, 0), "0-160") << "60 of 100 done at 120, then alone";
}

TEST(SharedLinks, BothDirectionsOfARankAreApart) {
  const std::string text = kHead + program(0, " 0 send on n to 1 lane n time 100ns\n 1 recv on n from 1 lane k time 100ns\n") +
                           program(1, " 0 recv on n from 0 lane n time 100ns\n 1 send on n to 0 lane k time 100ns\n");
  const Trace trace = run(text, fair_links());
  EXPECT_EQ(when(trace, 0, 0), "0-100");
  EXPECT_EQ(when(trace, 0, 1), "0-100");
}

// Inside the node and between nodes are two ports.
TEST(SharedLinks, LevelsAreApart) {
  const std::string text = kHead + program(0, " 0 send on n to 1 lane n time 100ns\n 1 send on n to 2 lane k time 100ns\n") +
                           program(1, " 0 recv on n from 0 lane n time 100ns\n") + program(2, " 0 recv on n from 0 lane n time 100ns\n");
  const Trace trace = run(text, fair_links(2));
  EXPECT_EQ(when(trace, 0, 0), "0-100");
  EXPECT_EQ(when(trace, 0, 1), "0-100");
}

// Max-min: three transfers into rank 1 get a third each; the other one out of rank 0 takes the two thirds that are left there.
TEST(SharedLinks, WhatOthersCannotUseIsNotLost) {
  const std::string text = "mesh dp 5\ncomm n axes dp\n" +
                           program(0, " 0 send on n to 1 lane n time 100ns\n 1 send on n to 4 lane k time 100ns\n") +
                           program(1,
                                   " lane l network\n 0 recv on n from 0 lane n time 100ns\n 1 recv on n from 2 lane k time 100ns\n"
                                   " 2 recv on n from 3 lane l time 100ns\n") +
                           program(2, " 0 send on n to 1 lane n time 100ns\n") + program(3, " 0 send on n to 1 lane n time 100ns\n") +
                           program(4, " 0 recv on n from 0 lane n time 100ns\n");
  const Trace trace = run(text, fair_links());
  EXPECT_EQ(when(trace, 4, 0), "0-150");
  EXPECT_EQ(when(trace, 1, 0), "0-300");
  EXPECT_EQ(when(trace, 1, 2), "0-300");
}

}  // namespace
}  // namespace steptwin
