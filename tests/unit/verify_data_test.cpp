// The checks of verify that follow the data: ACCESS, USE-BEFORE-WRITE, RACE, GUARD.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/verdict.h"

namespace steptwin {
namespace {

using testing::IsEmpty;

TEST(VerifyData, Access) {
  EXPECT_THAT(verdict(kOne + "  0 compute write x[piece 2/2] lane a\n"), only("ACCESS", "op 0 of p: x: piece 2 of 2 does not exist"));
  EXPECT_THAT(verdict(kOne + "  0 compute write x[tensor 0] lane a\n"), only("ACCESS", "a buffer without layout has no tensors"));
  const std::string layout = "mesh dp 2\nlayout l\n tensor t fp32 4 at 8B\nprogram p ranks all\n lane a compute\n buffer x 24B layout l\n";
  EXPECT_THAT(verdict(layout + "0 compute write x[tensor 3]\n"), only("ACCESS", "its layout has 1 tensors, so none with index 3"));
  EXPECT_THAT(verdict(layout + "0 compute write x[tensor t]\n"), IsEmpty());
  EXPECT_THAT(verdict(layout + " buffer y 23B layout l\n0 compute write y\n"),
              only("ACCESS", "buffer y of p has 23 bytes, but its layout l ends at byte 24"));
  EXPECT_THAT(verdict(kOne + "  0 all_reduce on c bytes 12B update w lane n\n"),
              only("ACCESS", "its 12 bytes do not fit its accesses: 0 bytes read, 0 written, 16 updated"));
  EXPECT_THAT(verdict(kOne + "  0 gather on c bytes 16B read w[shard c] write x lane n\n"), IsEmpty());
  EXPECT_THAT(verdict(kOne + "  0 gather on c bytes 8B read w[shard c] write x lane n\n"), only("ACCESS", "its 8 bytes do not fit"));
  EXPECT_THAT(verdict(kOne + "  0 copy dtype fp32 to bf16 read w write x[piece 0/2] lane b\n"), IsEmpty());
  EXPECT_THAT(verdict(kOne + "  0 copy dtype fp32 to bf16 read w write x lane b\n"), only("ACCESS", "cast from fp32 to bf16"));
  const std::string lazy = "mesh dp 1\nprogram p ranks all\n lane a compute\n buffer s 24B lazy\n";
  EXPECT_THAT(verdict(lazy + "0 compute update s lane a\n"), IsEmpty());
  EXPECT_THAT(verdict(lazy + "0 compute lane a\n"), only("ACCESS", "no op with a lane uses the lazy buffer s of p: it would never be allocated"));
}

TEST(VerifyData, UseBeforeWrite) {
  EXPECT_THAT(verdict(kOne + "  0 compute read x lane a\n"),
              only("USE-BEFORE-WRITE", "op 0 of p: it reads x, which no earlier op has written in full"));
  EXPECT_THAT(verdict(kOne + "  0 compute update x lane a\n"), only("USE-BEFORE-WRITE", "it reads x"));
  EXPECT_THAT(verdict(kOne + "  0 compute read w write x lane a\n"), IsEmpty());  // resident
  EXPECT_THAT(verdict(kOne + "  0 compute hold x lane a\n"), IsEmpty());
  const std::string halves = "  0 compute write x[piece 0/2] lane a\n  1 compute read x[piece 0/2] lane a\n";
  EXPECT_THAT(verdict(kOne + halves), IsEmpty());
  EXPECT_THAT(verdict(kOne + halves + "  2 compute read x lane a\n"), only("USE-BEFORE-WRITE", "op 2 of p"));
  EXPECT_THAT(verdict(kOne + halves + "  2 compute write x[piece 1/2] lane a\n  3 compute read x lane a\n"), IsEmpty());
  EXPECT_THAT(verdict(kOne + "  0 compute write x[shard c] lane a\n  1 compute read x[shard c] lane a\n"), IsEmpty());
  EXPECT_THAT(verdict(kOne + "  0 compute write x[shard c] lane a\n  1 compute read x[piece 0/2] lane a\n"),
              only("USE-BEFORE-WRITE", "op 1"));  // rank 1 has the other half
  EXPECT_THAT(verdict(kOne + "  0 compute lane a when ok\n"), only("USE-BEFORE-WRITE", "it reads ok"));
}

TEST(VerifyData, RaceOrders) {
  const std::string write = "  0 compute write x lane a\n";
  EXPECT_THAT(verdict(kOne + write + "  1 compute write x lane b\n"), only("RACE", "it writes x, which op 0 writes"));
  EXPECT_THAT(verdict(kOne + write + "  1 compute read x lane b after 0\n"), IsEmpty());
  EXPECT_THAT(verdict(kOne + write + "  1 host_wait for 0\n  2 compute read x lane b\n"), IsEmpty());
  EXPECT_THAT(verdict(kOne + write + "  1 compute lane a\n  2 host_wait for 1\n  3 compute read x lane b\n"),
              IsEmpty());  // lane, then host
  EXPECT_THAT(verdict(kOne + write + "  1 compute read x lane a\n  2 compute write x lane b after 0\n"),
              only("RACE", "op 2 of p: it writes x, which op 1 reads"));
  EXPECT_THAT(verdict(kOne + write + "  1 compute read w lane b after 0\n  2 compute read x lane n after 1\n"), IsEmpty());  // transitive
  EXPECT_THAT(verdict(kOne + write + "  1 compute read x lane b after 0\n  2 compute read x lane n after 0\n"), IsEmpty());  // two reads
  EXPECT_THAT(verdict(kOne + "  0 compute write x[piece 0/2] lane a\n  1 compute write x[piece 1/2] lane b\n"), IsEmpty());
  EXPECT_THAT(verdict(kOne + "  0 compute write x[piece 0/2] lane a\n  1 compute write x[piece 1/4] lane b\n"),
              only("RACE", "op 1 of p: it writes x"));
  EXPECT_THAT(verdict(kOne + "  0 compute write ok lane a\n  1 compute lane b when ok\n"), only("RACE", "it reads ok, which op 0 writes"));
}

TEST(VerifyData, RaceIgnoresOrderThroughCommunicatorsOrOtherRanks) {
  EXPECT_THAT(verdict(kOne + "  0 all_reduce on c update w lane n\n  1 all_reduce on c update w lane b\n"),
              only("RACE", "op 1 of p: it writes w"));
  // rank 1 answers only after it has received, so the receive ends after the send; this rank itself does not order them
  const std::string echo = two_programs("buffer x 8B resident\n0 send on c to 1 read x lane n\n1 recv on c from 1 write x lane k\n",
                                        "buffer y 8B\n0 recv on c from 0 write y lane n\n1 send on c to 0 read y lane n\n");
  EXPECT_THAT(verdict(echo), only("RACE", "op 1 of p: it writes x, which op 0 reads"));
}

TEST(VerifyData, RaceInGroups) {
  const std::string ring =
      "mesh pp 2\ncomm c axes pp\nprogram p ranks all\n lane n network\n lane a compute\n buffer x 8B resident\n buffer y 8B resident\n";
  EXPECT_THAT(verdict(ring + "0 send on c to +1 read x lane n group 0\n1 recv on c from -1 write x lane n group 0\n"),
              only("RACE", "ops of a group run at once"));
  EXPECT_THAT(verdict(ring + "0 send on c to +1 read x lane n group 0\n1 recv on c from -1 write y lane n group 0\n"), IsEmpty());
  // waiting for one op of a group is waiting for all of them
  EXPECT_THAT(
      verdict(
          ring +
          "0 send on c to +1 read x lane n group 0\n1 recv on c from -1 write y lane n group 0\n2 compute read y write x lane a after 0\n"),
      IsEmpty());
  // and what one of them waits for, all wait for
  EXPECT_THAT(
      verdict(ring +
              "0 compute write x y lane a\n1 send on c to +1 read x lane n after 0 group 0\n2 recv on c from -1 write y lane n group 0\n"),
      IsEmpty());
}

TEST(VerifyData, BuffersWithoutSizeAreCheckedToo) {
  const std::string head = "mesh pp 1\nprogram p ranks all\n lane a compute\n lane b host\n buffer x\n";
  EXPECT_THAT(verdict(head + "0 compute write x lane a\n1 compute read x lane b\n"), only("RACE", "it reads x"));
  EXPECT_THAT(verdict(head + "0 compute write x[piece 0/3] lane a\n1 compute write x[piece 1/3] lane b\n"), IsEmpty());
}

TEST(VerifyData, Guard) {
  EXPECT_THAT(verdict(kOne + "  0 compute write ok lane n\n  1 all_reduce on c update w lane n when ok\n"),
              only("GUARD", "op 1 of p: its guard ok is not the result of a collective over the members of c"));
  EXPECT_THAT(
      verdict(kOne +
              "  0 compute write ok lane n\n  1 all_reduce on c max update ok lane n\n  2 all_reduce on c update w lane n when ok\n"),
      IsEmpty());
  EXPECT_THAT(verdict(kOne + "  0 compute write ok lane n\n  1 compute update w lane n when ok\n"), IsEmpty());  // not communication
  // computed from an agreed value only: still agreed; with a rank's own value: not
  const std::string flag = "  buffer f 4B\n  0 compute write ok lane n\n  1 all_reduce on c max update ok lane n\n";
  EXPECT_THAT(verdict(kOne + flag + "  2 compute read ok write f lane n\n  3 all_reduce on c update w lane n when f\n"), IsEmpty());
  EXPECT_THAT(verdict(kOne + flag + "  2 compute read ok w write f lane n\n  3 all_reduce on c update w lane n when f\n"),
              only("GUARD", "its guard f"));
  // a collective over fewer members does not do
  const std::string wide =
      "mesh pp 2 dp 2\ncomm dp axes dp\ncomm every axes pp dp\nprogram p ranks all\n lane n network\n buffer ok 4B\n0 compute write ok "
      "lane n\n";
  EXPECT_THAT(verdict(wide + "1 all_reduce on dp update ok lane n\n2 all_reduce on every lane n when ok\n"),
              only("GUARD", "over the members of every"));
  EXPECT_THAT(verdict(wide + "1 all_reduce on every update ok lane n\n2 all_reduce on dp lane n when ok\n"), IsEmpty());
}

}  // namespace
}  // namespace steptwin
