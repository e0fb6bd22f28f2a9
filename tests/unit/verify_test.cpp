// One minimal broken schedule per code, asserting code and text; a clean one that passes; and seeded faults: remove one
// dependency of a sound schedule, and the race is found.
#include "schedule/ir/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/support/verdict.h"

namespace steptwin {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Two stages, forward and backward of two micro-batches with gradient all-reduce and a guarded optimizer step.
const std::string kClean = R"(mesh pp 2 dp 2
comm pp.fwd axes pp
comm pp.bwd axes pp
comm dp axes dp
comm world axes pp dp
program pp0 ranks pp=0
  lane compute compute
  lane send network
  lane recv network
  lane reduce network
  buffer W 64B param resident
  buffer G 64B gradient
  buffer a0 16B activation
  buffer a1 16B activation
  buffer d0 16B recv
  buffer d1 16B recv
  buffer ok 4B
  0 compute F mb0 read W write a0 lane compute
  1 send F mb0 on pp.fwd to 1 read a0 lane send after 0
  2 compute F mb1 read W write a1 lane compute
  3 send F mb1 on pp.fwd to 1 read a1 lane send after 2
  4 recv B mb0 on pp.bwd from 1 write d0 lane recv
  5 compute B mb0 read a0 d0 W write G lane compute after 4
  6 recv B mb1 on pp.bwd from 1 write d1 lane recv
  7 compute B mb1 read a1 d1 W update G lane compute after 6
  8 all_reduce on dp update G lane reduce after 7
  9 compute U check read G write ok lane compute after 8
  10 all_reduce on world max update ok lane reduce after 9
  11 compute U adam read G update W lane compute after 10 when ok
program pp1 ranks pp=1
  lane compute compute
  lane send network
  lane recv network
  lane reduce network
  buffer W 64B param resident
  buffer G 64B gradient
  buffer x0 16B recv
  buffer x1 16B recv
  buffer d0 16B send
  buffer d1 16B send
  buffer ok 4B
  0 recv F mb0 on pp.fwd from 0 write x0 lane recv
  1 compute F mb0 read W x0 lane compute after 0
  2 compute B mb0 read W x0 write G d0 lane compute
  3 send B mb0 on pp.bwd to 0 read d0 lane send after 2
  4 recv F mb1 on pp.fwd from 0 write x1 lane recv
  5 compute F mb1 read W x1 lane compute after 4
  6 compute B mb1 read W x1 update G write d1 lane compute
  7 send B mb1 on pp.bwd to 0 read d1 lane send after 6
  8 all_reduce on dp update G lane reduce after 6
  9 compute U check read G write ok lane compute after 8
  10 all_reduce on world max update ok lane reduce after 9
  11 compute U adam read G update W lane compute after 10 when ok
)";

TEST(Verify, CleanSchedulePasses) { EXPECT_THAT(verdict(kClean), IsEmpty()); }

TEST(Verify, EveryDroppedDependencyIsARace) {
  const Schedule clean = parsed(kClean);
  int dropped = 0;
  for (std::uint32_t op = 0; op < clean.ops.size(); ++op) {
    for (std::uint32_t d = clean.dep_offsets[op]; d < clean.dep_offsets[op + 1]; ++d) {
      Schedule broken = clean;
      broken.deps.erase(broken.deps.begin() + d);
      for (std::size_t i = op + 1; i < broken.dep_offsets.size(); ++i) --broken.dep_offsets[i];
      EXPECT_THAT(verdict(broken), Contains(HasSubstr("[RACE]"))) << print_op(clean, OpId(op));
      ++dropped;
    }
  }
  EXPECT_EQ(dropped, 16);
}

TEST(Verify, RangeInTables) {
  Schedule s = parsed(kOne + "  0 compute write x lane a\n");
  Schedule broken = s;
  broken.access_offsets.back() = 7;
  EXPECT_THAT(verdict(broken), only("RANGE", "access_offsets do not fit"));
  broken = s;
  broken.programs[0].op_count = 2;
  EXPECT_THAT(verdict(broken), only("RANGE", "the programs do not cover the ops"));
  broken = s;
  broken.dep_offsets.clear();
  EXPECT_THAT(verdict(broken), only("RANGE", "dep_offsets do not fit"));
  broken = s;
  std::get<Compute>(broken.ops[0].body).part_count = 0;
  EXPECT_THAT(verdict(broken), only("RANGE", "the parts of compute ops do not stand in op order"));
}

TEST(Verify, RangeInDeclarations) {
  EXPECT_THAT(verdict("mesh pp 2\nprogram p ranks 0\nprogram q ranks 0,1\n"), only("RANGE", "rank 0 is in programs p and q"));
  EXPECT_THAT(verdict("mesh pp 2\nprogram p ranks 1,0\n"), only("RANGE", "the ranks of p are not ascending"));
  EXPECT_THAT(verdict("mesh pp 4\ncomm c axes pp groups {0,1} {1,2}\n"), only("RANGE", "position 1 is in two groups"));
  EXPECT_THAT(verdict("mesh pp 1\nprogram p ranks all\nbuffer b0 named x 1B resident\nbuffer b1 named x 1B resident\n"),
              only("RANGE", "two resident buffers of p are called 'x'"));
  Schedule s = parsed("mesh pp 2\ncomm c axes pp\n");
  s.communicators[0].axes = {3};
  EXPECT_THAT(verdict(s), only("RANGE", "its axes are not ascending axes of the mesh"));
  s = parsed("mesh pp 2\n");
  s.names = {"same", "same"};
  EXPECT_THAT(verdict(s), only("RANGE", "two interned names are called 'same'"));
  s.names.clear();
  s.mesh.axes[0].size = 0;
  EXPECT_THAT(verdict(s), only("RANGE", "between 1 and 1048576 ranks"));
  s = parsed(kOne);
  s.programs[0].buffers[0].bytes = Bytes(-1);
  EXPECT_THAT(verdict(s), only("RANGE", "buffer 0 of p has a name, layout, space, category or size out of bounds"));
  s = parsed(kOne);
  s.programs[0].lanes.push_back({"a", Engine::Host, Priority::Normal});
  EXPECT_THAT(verdict(s), only("RANGE", "two lanes of p are called 'a'"));
}

TEST(Verify, RangeInOps) {
  EXPECT_THAT(verdict(kOne + "  0 compute lane a\n  1 compute lane a after 1\n"),
              only("RANGE", "op 1 of p: its dependency on op 1 does not point back"));
  EXPECT_THAT(verdict(kOne + "  0 compute lane a\n  1 host_wait for 4\n"), only("RANGE", "it waits for no earlier op of its program"));
  Schedule s = parsed(kOne + "  0 compute write x lane a\n");
  s.ops[0].lane = LaneId();
  EXPECT_THAT(verdict(s), only("RANGE", "op 0 of p: it has no lane"));
  s.ops[0].lane = LaneId(9);
  EXPECT_THAT(verdict(s), only("RANGE", "lane 9 does not exist"));
  s.ops[0].lane = LaneId(0);
  s.accesses[0].buffer = BufferId(50);
  EXPECT_THAT(verdict(s), only("RANGE", "buffer 50 does not exist"));
  EXPECT_THAT(verdict(s), Contains(HasSubstr("-> p: 0 compute write ?50 lane a")));
  s.accesses[0] = {BufferId(0), AccessMode::Write, {Part::Kind::Whole, 3, 0}};
  EXPECT_THAT(verdict(s), only("RANGE", "a part has a number that its kind does not use"));
  s.accesses[0].part = {};
  s.ops[0].label.layer = -2;
  EXPECT_THAT(verdict(s), only("RANGE", "its label has a number out of bounds"));
}

TEST(Verify, Label) {
  EXPECT_THAT(verdict(kOne + "  0 compute lane a\n  1 host_wait for 0 lane a\n"), only("LABEL", "op 1 of p: a host_wait has a lane"));
  EXPECT_THAT(verdict(kOne + "  0 compute write x lane a\n  1 compute lane a when x\n"),
              only("LABEL", "its guard x is not a one-element buffer"));
  EXPECT_THAT(verdict(kOne + "  0 compute lane a group 1\n"), only("LABEL", "it is in a group but does not communicate"));
  EXPECT_THAT(verdict(kOne + "  0 all_reduce on c lane n group 1\n  1 compute lane a\n  2 all_reduce on c lane n group 1\n"),
              only("LABEL", "group 1 is not a run of consecutive ops"));
  EXPECT_THAT(verdict(kOne + "  0 all_reduce on c lane n group 1\n  1 all_reduce on c lane b group 1\n"),
              only("LABEL", "group 1 spans two lanes"));
  EXPECT_THAT(verdict(kOne + "  0 all_reduce on c lane n group 1\n  1 all_reduce on c lane n after 0 group 1\n"),
              only("LABEL", "it depends on an op of its own group"));
}

TEST(Verify, ShowsTheOpLineWithAnArrow) {
  EXPECT_THAT(verdict(kOne + "  0 compute write x lane a\n  1 compute read x lane b\n"),
              ElementsAre("error: op 1 of p: it reads x, which op 0 writes, and nothing on this rank orders the two [RACE]\n"
                          "     p: 0 compute write x lane a\n"
                          "  -> p: 1 compute read x lane b\n"
                          "  help: add `after 0` to it, or put both on one lane"));
}

TEST(Verify, CommMember) {
  EXPECT_THAT(verdict("mesh pp 3\ncomm c axes pp groups {0,1}\nprogram p ranks all\nlane n network\n0 all_reduce on c\n"),
              only("COMM-MEMBER", "rank 2 is no member of communicator c"));
  EXPECT_THAT(verdict(kTwo + "program p ranks all\nlane n network\n0 send on c to 2\n"),
              only("COMM-MEMBER", "member 2 does not exist: the communicator has 2 members"));
  EXPECT_THAT(verdict(kTwo + "program p ranks all\nlane n network\n0 broadcast on c root 5\n"),
              only("COMM-MEMBER", "member 5 does not exist"));
  EXPECT_THAT(
      verdict(
          "mesh pp 3\ncomm c axes pp groups {0,1}\nprogram p ranks all\nlane n compute\nbuffer x resident\n0 compute read x[shard c]\n"),
      only("COMM-MEMBER", "rank 2 has no shard"));
}

TEST(Verify, SelfOutsideAGroup) {
  EXPECT_THAT(verdict(kTwo + "program p ranks all\nlane n network\n0 send on c to +2\n1 recv on c from +2\n"),
              testing::Each(HasSubstr("[SELF]")));
  EXPECT_THAT(verdict(kTwo + "program p ranks all\nlane n network\n0 send on c to +2 group 0\n1 recv on c from +2 group 0\n"), IsEmpty());
}

TEST(Verify, CommOrderInsideACommunicator) {
  EXPECT_THAT(verdict(two_programs("0 all_reduce on c bytes 4B lane n\n", "0 gather on c bytes 4B lane n\n")),
              only("COMM-ORDER", "collective 1 on c differs between rank 1 and rank 0: gather against all_reduce"));
  EXPECT_THAT(verdict(two_programs("0 gather on c bytes 4B lane n\n", "0 gather on c bytes 8B lane n\n")),
              only("COMM-ORDER", "8 bytes against 4"));
  EXPECT_THAT(verdict(two_programs("0 gather on c bytes 4B lane n\n", "0 gather on c bytes 4B dtype fp32 lane n\n")),
              only("COMM-ORDER", "fp32 against bf16"));
  EXPECT_THAT(verdict(two_programs("0 all_reduce on c max lane n\n", "0 all_reduce on c lane n\n")), only("COMM-ORDER", "sum against max"));
  EXPECT_THAT(verdict(two_programs("0 broadcast on c root 0 lane n\n", "0 broadcast on c root 1 lane n\n")),
              only("COMM-ORDER", "the root of collective 1 on c is member 1 for rank 1 but member 0 for rank 0"));
  EXPECT_THAT(verdict(two_programs("0 broadcast on c root +0 lane n\n", "0 broadcast on c root -1 lane n\n")), IsEmpty());
  EXPECT_THAT(verdict(two_programs("0 all_reduce on c lane n\n1 all_reduce on c lane n\n", "0 all_reduce on c lane n\n")),
              only("COMM-ORDER", "collective 2 on c is issued by rank 0 but not by rank 1"));
  EXPECT_THAT(verdict(kTwo + "program p ranks 0\nlane n network\n0 all_reduce on c\n"),
              only("COMM-ORDER", "collective 1 on c is issued by rank 0 but not by rank 1"));
}

TEST(Verify, CommOrderAcrossCommunicators) {  // specs/schedules.md 7.5 E
  const std::string crossed =
      two_programs("0 gather on c lane n\n1 reduce_scatter on d lane k\n", "0 reduce_scatter on d lane k\n1 gather on c lane n\n");
  EXPECT_THAT(verdict(crossed), only("COMM-ORDER", "warning: op 0 of q: rank 1 uses communicator d where rank 0 uses c first"));
  EXPECT_THAT(verdict(crossed, {Transport::Nccl, 20}), only("COMM-ORDER", "error: op 0 of q"));
  EXPECT_THAT(
      verdict(two_programs("0 gather on c lane n\n1 reduce_scatter on d lane k\n", "0 gather on c lane k\n1 reduce_scatter on d lane n\n")),
      IsEmpty());
  // on one lane the hang is certain, and said as such
  EXPECT_THAT(verdict(two_programs("0 gather on c lane n\n1 gather on d lane n\n", "0 gather on d lane n\n1 gather on c lane n\n")),
              ElementsAre(HasSubstr("warning: "), HasSubstr("[DEADLOCK]")));
  // inside a group the two start as one
  EXPECT_THAT(verdict(two_programs("0 gather on c lane n group 0\n1 gather on d lane n group 0\n",
                                   "0 gather on d lane n group 0\n1 gather on c lane n group 0\n")),
              IsEmpty());
}

TEST(Verify, MissingMessages) {
  EXPECT_THAT(
      verdict(two_programs("0 send on c to 1 lane n\n1 send on c to 1 lane n\n", "0 recv on c from 0 lane n\n")),
      only("MISSING-RECV", "op 1 of p: message 2 on c from rank 0 to rank 1 is never received: rank 1 posts 1 receives for 2 sends"));
  EXPECT_THAT(verdict(two_programs("", "0 recv on c from 0 lane n\n")),
              only("MISSING-SEND", "op 0 of q: message 1 on c from rank 0 to rank 1 is never sent"));
  EXPECT_THAT(verdict("mesh pp 8\ncomm c axes pp\nprogram p ranks all\nlane n network\n0 send on c to +1\n"),
              only("MISSING-RECV", "from rank 0 to rank 1"));  // once, not eight times
}

TEST(Verify, MessageSize) {
  EXPECT_THAT(verdict(two_programs("0 send on c to 1 bytes 8B lane n\n", "0 recv on c from 0 bytes 4B lane n\n")),
              only("SIZE", "8 bytes of bf16 are sent, 4 bytes of bf16 are expected"));
  EXPECT_THAT(verdict(two_programs("0 send on c to 1 dtype fp32 lane n\n", "0 recv on c from 0 lane n\n")),
              only("SIZE", "0 bytes of fp32 are sent, 0 bytes of bf16"));
}

// specs/schedules.md 7.5 D: NCCL matches by order, so two receives in the wrong order get each other's data.
TEST(Verify, MessageOrder) {
  const std::string sends = "0 send on c to 1 F mb0 lane n\n1 send on c to 1 F mb1 lane n\n";
  EXPECT_THAT(verdict(two_programs(sends, "0 recv on c from 0 F mb1 lane n\n1 recv on c from 0 F mb0 lane n\n")),
              only("MESSAGE-ORDER", "message 1 on c from rank 0 to rank 1 is F mb0, but F mb1 is expected; sent: [F mb0], F mb1; expected: [F mb1], F mb0"));
  EXPECT_THAT(verdict(two_programs(sends, "0 recv on c from 0 F mb0 lane n\n1 recv on c from 0 B mb1 lane n\n")),
              only("MESSAGE-ORDER", "is F mb1, but B mb1 is expected"));
  EXPECT_THAT(verdict(two_programs(sends, "0 recv on c from 0 mb0 lane n\n1 recv on c from 0 lane n\n")), IsEmpty());
  // two chunks a rank: the receive of stage 3 stands before that of stage 1
  const std::string chunks = "mesh pp 2\ncomm c axes pp\nprogram p ranks 0 stages 0,2\nlane n network\n0 send on c to 1 F c0 mb0 lane n\n"
                             "1 send on c to 1 F c1 mb0 lane n\nprogram q ranks 1 stages 1,3\nlane n network\n";
  EXPECT_THAT(verdict(chunks + "0 recv on c from 0 F c1 mb0 lane n\n1 recv on c from 0 F c0 mb0 lane n\n"),
              only("MESSAGE-ORDER", "warning: op 0 of q: message 1 on c from rank 0 to rank 1 is F c0 mb0, but F c1 mb0 is expected"));
  EXPECT_THAT(verdict(chunks + "0 recv on c from 0 F c0 mb0 lane n\n1 recv on c from 0 F c1 mb0 lane n\n"), IsEmpty());
}

TEST(Verify, AGuardHoldsForAllMembersOrNone) {
  const auto guarded = [](const std::string& kind, const std::string& peer_a, const std::string& peer_b) {
    return two_programs("buffer ok 4B resident\n0 all_reduce on c update ok lane n\n1 " + kind + peer_a + " lane n when ok\n",
                        "buffer ok 4B resident\n0 all_reduce on c update ok lane n\n1 " + (kind == "send" ? "recv" : kind) + peer_b + " lane n\n");
  };
  EXPECT_THAT(verdict(guarded("all_reduce", " on c", " on c")), only("GUARD", "collective 2 on c has a guard on rank 0 only"));
  EXPECT_THAT(verdict(guarded("send", " on c to 1", " on c from 0")), only("GUARD", "message 1 on c from rank 0 to rank 1 has a guard at one end only"));
}

TEST(Verify, DupSend) {
  const std::string sends = "0 send on c to 1 bytes 8B lane n\n1 send on c to 1 bytes 8B lane n\n";
  EXPECT_THAT(verdict(two_programs(
                  sends, "buffer x 16B\n0 recv on c from 0 write x[piece 0/2] lane n\n1 recv on c from 0 write x[piece 0/2] lane n\n")),
              only("DUP-SEND", "op 1 of q: two messages fill the same part of x: this one overwrites what op 0 received"));
  EXPECT_THAT(verdict(two_programs(
                  sends, "buffer x 16B\n0 recv on c from 0 write x[piece 0/2] lane n\n1 recv on c from 0 write x[piece 1/2] lane n\n")),
              IsEmpty());
  EXPECT_THAT(verdict(two_programs(
                  sends, "buffer x 8B\n0 recv on c from 0 write x lane n\n1 compute read x lane n\n2 recv on c from 0 write x lane n\n")),
              IsEmpty());
}

// Rank 0: {s1, s2} then s3. Rank 1: {r1, r3} then {r2}: each group waits for the other side's next one (specs/schedules.md 7.4).
TEST(Verify, GroupSplit) {
  const std::string split = two_programs(
      "0 send on c to 1 lane n group 0\n1 send on d to 1 lane n group 0\n2 recv on c from 1 lane n group 1\n3 recv on d from 1 lane n "
      "group 1\n",
      "0 recv on c from 0 lane n group 0\n1 send on c to 0 lane n group 0\n2 recv on d from 0 lane n group 1\n3 send on d to 0 lane n "
      "group 1\n");
  EXPECT_THAT(verdict(split),
              only("GROUP-SPLIT", "rank 0 has two messages with rank 1 in group 0, but there they are split over group 0 and op 2 of q"));
  EXPECT_FALSE(find_deadlock(parsed(split)).empty());  // it does hang
  const std::string same = two_programs("0 send on c to 1 lane n group 0\n1 send on d to 1 lane n group 0\n",
                                        "0 recv on c from 0 lane n group 0\n1 recv on d from 0 lane n group 0\n");
  EXPECT_THAT(verdict(same), IsEmpty());
  // split but not interlocking: the second group simply comes later
  const std::string later = two_programs("0 send on c to 1 lane n group 0\n1 send on d to 1 lane n group 0\n",
                                         "0 recv on c from 0 lane n group 0\n1 recv on d from 0 lane n group 1\n");
  EXPECT_THAT(verdict(later), IsEmpty());
}

TEST(Verify, LimitAndOrder) {
  std::string ops;
  for (int i = 0; i < 50; ++i) ops += "  " + std::to_string(i) + " compute write x[piece " + std::to_string(i) + "/1] lane a\n";
  EXPECT_EQ(verdict(kOne + ops).size(), 20u);
  EXPECT_EQ(verdict(kOne + ops, {Transport::Any, 3}).size(), 3u);
}

std::string scenario(const std::string& name) {
  std::ifstream in(std::string(SOURCE_DIR) + "/scenarios/" + name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Verify, HangScenariosDeadlockAndNothingElse) {
  for (const char* name : {"hang_send_send.sched", "hang_ring3.sched", "hang_interleaved.sched"})
    EXPECT_THAT(verdict(scenario(name)), ElementsAre(HasSubstr("[DEADLOCK]"))) << name;
  EXPECT_THAT(verdict(scenario("ok_ring3.sched")), IsEmpty());
}

TEST(Verify, DeadlockNamesBothRanksOps) {
  EXPECT_THAT(verdict(scenario("hang_interleaved.sched")),
              Contains(AllOf(HasSubstr("3 send on p2p to 1 F c0 mb1"), HasSubstr("2 send on p2p to 0 F c0 mb0"))));
}

}  // namespace
}  // namespace steptwin
