// Deadlocks and how they are explained: specs/schedules.md 7.4, 7.5.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/verdict.h"

namespace steptwin {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// The only finding of a schedule that deadlocks.
Diagnostic deadlock(const std::string& text) {
  const auto found = verify(parsed(text));
  EXPECT_THAT(found, SizeIs(1)) << text;
  if (found.empty()) return {};
  EXPECT_EQ(found.front().code, "DEADLOCK") << found.front().text;
  return found.front();
}

// n ranks of one program: everybody sends to the next one, then receives from the one before, on one lane.
std::string ring(int n, const std::string& group = "") {
  return fmt::format("mesh pp {}\ncomm c axes pp\nprogram p ranks all\nlane n network\n0 send on c to +1 lane n{}\n1 recv on c from -1 lane n{}\n",
                     n, group, group);
}

TEST(Deadlock, SendSendNamesBothRanks) {  // 7.5 A, NVIDIA/nccl#479
  const Diagnostic d = deadlock(two_programs("0 send on c to 1 lane n\n1 recv on c from 1 lane n\n", "0 send on c to 0 lane n\n1 recv on c from 0 lane n\n"));
  EXPECT_EQ(d.text, "schedule deadlocks: ranks 0 and 1 wait for each other");
  EXPECT_THAT(d.details, ElementsAre("rank 0 `0 send on c to 1 lane n` waits for rank 1 `1 recv on c from 0 lane n`, behind `0 send on c to 0 lane n`",
                                     "rank 1 `0 send on c to 0 lane n` waits for rank 0 `1 recv on c from 1 lane n`, behind `0 send on c to 1 lane n`"));
}

TEST(Deadlock, RingsNameEveryRankThoughOneProgramServesAll) {  // 7.5 B1
  for (int n = 2; n <= 5; ++n) {
    const Diagnostic d = deadlock(ring(n));
    EXPECT_THAT(d.details, SizeIs(n));
    EXPECT_THAT(d.text, AllOf(HasSubstr("ranks 0"), HasSubstr(fmt::format("and {} wait", n - 1))));
    EXPECT_THAT(verdict(ring(n, " group 0")), IsEmpty());  // 7.5 A, B1: grouped
  }
}

TEST(Deadlock, EvenSendsFirstOddReceivesFirstPasses) {  // 7.5 B2, odd n too
  for (int n = 2; n <= 5; ++n) {
    std::string text = fmt::format("mesh pp {}\ncomm c axes pp\n", n);
    for (int r = 0; r < n; ++r) {
      text += fmt::format("program p{} ranks {}\nlane n network\n", r, r);
      text += r % 2 == 0 ? "0 send on c to +1 lane n\n1 recv on c from -1 lane n\n" : "0 recv on c from -1 lane n\n1 send on c to +1 lane n\n";
    }
    EXPECT_THAT(verdict(text), IsEmpty()) << n;
  }
}

TEST(Deadlock, ThroughTheHost) {
  const Diagnostic d = deadlock(two_programs("0 recv on c from 1 lane n\n1 host_wait for 0\n2 send on c to 1 lane k\n",
                                             "0 recv on c from 0 lane n\n1 host_wait for 0\n2 send on c to 0 lane k\n"));
  EXPECT_EQ(d.text, "schedule deadlocks: ranks 0 and 1 wait for each other");
  EXPECT_THAT(d.details,
              ElementsAre("rank 0 `1 host_wait for 0` waits for rank 0 `0 recv on c from 1 lane n`",
                          "rank 0 `0 recv on c from 1 lane n` waits for rank 1 `2 send on c to 0 lane k`, which its host has not issued: the host "
                          "stands at `1 host_wait for 0`",
                          "rank 1 `1 host_wait for 0` waits for rank 1 `0 recv on c from 0 lane n`",
                          "rank 1 `0 recv on c from 0 lane n` waits for rank 0 `2 send on c to 1 lane k`, which its host has not issued: the host "
                          "stands at `1 host_wait for 0`"));
}

TEST(Deadlock, ThroughADependency) {  // each receives only after it could send what the other waits for
  const Diagnostic d = deadlock(two_programs("0 recv on c from 1 lane n\n1 send on c to 1 lane k after 0\n",
                                             "0 recv on c from 0 lane n\n1 send on c to 0 lane k after 0\n"));
  EXPECT_THAT(d.details, SizeIs(4));
  EXPECT_THAT(d.details[1], HasSubstr("rank 1 `1 send on c to 0 lane k after 0` waits for rank 1 `0 recv on c from 0 lane n`"));
}

TEST(Deadlock, GroupsThatWaitForEachOther) {
  const Diagnostic d = deadlock(two_programs("0 recv on c from 1 lane n group 0\n1 recv on d from 1 lane n group 0\n2 send on c to 1 lane n\n",
                                             "0 recv on c from 0 lane n\n1 send on c to 0 lane n group 0\n2 send on d to 0 lane n group 0\n"));
  EXPECT_EQ(d.text, "schedule deadlocks: ranks 0 and 1 wait for each other");
  EXPECT_THAT(d.details, SizeIs(2));
}

TEST(Deadlock, RanksBehindTheCycleAreToldWhatTheyWaitFor) {
  const Diagnostic d = deadlock(R"(mesh pp 3
comm c axes pp
program a ranks 0
  lane n network
  0 send on c to 1 lane n
  1 recv on c from 1 lane n
program b ranks 1
  lane n network
  0 send on c to 0 lane n
  1 recv on c from 0 lane n
  2 send on c to 2 lane n
program z ranks 2
  lane n network
  lane k compute
  0 recv on c from 1 lane n
  1 compute lane k after 0
)");
  ASSERT_THAT(d.details, SizeIs(3));
  EXPECT_EQ(d.details[2], "rank 2 `0 recv on c from 1 lane n` waits for rank 1 `2 send on c to 2 lane n`, behind `0 send on c to 0 lane n`");
}

}  // namespace
}  // namespace steptwin
