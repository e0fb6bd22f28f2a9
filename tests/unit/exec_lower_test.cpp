// exec/lower: waits are enough (check_instructions, on random schedules), and no more than needed (small cases by hand).
#include "exec/lower.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/ir/text.h"
#include "tests/support/random_schedule.h"

namespace steptwin {
namespace {

using Kind = Instruction::Kind;

struct Lowered {
  Schedule schedule;
  Matching matching;
  InstructionList list;
};
Lowered lowered(const std::string& text) {
  Lowered result{parse_schedule(text, "test"), {}, {}};
  result.matching = match(result.schedule, Folding::None);
  result.list = lower(result.schedule, result.matching.tables[0]);
  return result;
}

std::size_t count(const InstructionList& list, Kind kind) {
  return static_cast<std::size_t>(std::count_if(list.instructions.begin(), list.instructions.end(), [&](const Instruction& i) { return i.kind == kind; }));
}
std::vector<std::uint32_t> waits_of(const InstructionList& list, std::uint32_t op) {
  std::vector<std::uint32_t> ops;
  for (const Instruction& i : list.instructions)
    if (i.kind == Kind::Wait && i.op == op) ops.push_back(list.event_op[i.value]);
  return ops;
}

constexpr const char* kThreeLanes = R"(mesh pp 1
program p ranks all
  lane a compute
  lane b copy_up
  lane c copy_down
)";

TEST(Lower, an_own_lane_dependency_needs_no_event) {
  const Lowered l = lowered(std::string(kThreeLanes) + "  0 compute lane a time 1us\n  1 compute lane a after 0 time 1us\n");
  EXPECT_EQ(count(l.list, Kind::Wait), 0u);
  EXPECT_TRUE(l.list.event_op.empty());
}

TEST(Lower, a_wait_implied_through_a_third_lane_is_left_out) {
  // 2 depends on 0 and 1, and 1 waits for 0 already.
  const Lowered l = lowered(std::string(kThreeLanes) + "  0 compute lane a time 1us\n  1 copy lane b after 0 time 1us\n  2 copy lane c after 0,1 time 1us\n");
  EXPECT_EQ(waits_of(l.list, 1), (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(waits_of(l.list, 2), (std::vector<std::uint32_t>{1}));
}

TEST(Lower, of_one_lane_only_the_latest_is_waited_for) {
  const Lowered l = lowered(std::string(kThreeLanes) +
                            "  0 compute lane a time 1us\n  1 compute lane a time 1us\n  2 copy lane b after 0,1 time 1us\n  3 copy lane b after 0 time 1us\n");
  EXPECT_EQ(waits_of(l.list, 2), (std::vector<std::uint32_t>{1}));
  EXPECT_TRUE(waits_of(l.list, 3).empty());
}

TEST(Lower, what_the_host_waited_for_is_known_to_every_lane) {
  const Lowered l = lowered(std::string(kThreeLanes) +
                            "  0 compute lane a time 1us\n  1 host_wait for 0\n  2 copy lane b after 0 time 1us\n  3 copy lane c after 0,1 time 1us\n");
  EXPECT_EQ(count(l.list, Kind::Wait), 0u);
  EXPECT_EQ(count(l.list, Kind::HostWait), 1u);
}

TEST(Lower, prints_every_instruction) {
  const Lowered l = lowered(R"(mesh pp 1
program p ranks all
  lane a compute
  lane b copy_up
  buffer x 4B
  0 compute write x lane a time 1us
  1 compute read x lane b after 0 time 1us
)");
  EXPECT_EQ(print_instructions(l.schedule, l.list),
            "program p: 8 instructions, 1 events\n"
            "  alloc      x\n"
            "  mark       0\n"
            "  launch     0 compute write x lane a time 1us\n"
            "  record     e0 (op 0) on a\n"
            "  mark       1\n"
            "  wait       e0 (op 0) on b\n"
            "  launch     1 compute read x lane b after 0 time 1us\n"
            "  free       x\n");
}

TEST(Lower, check_finds_a_missing_wait_and_a_missing_free) {
  Lowered l = lowered(R"(mesh pp 1
program p ranks all
  lane a compute
  lane b copy_up
  buffer x 4B
  0 compute write x lane a time 1us
  1 compute read x lane b after 0 time 1us
)");
  const auto codes_without = [&](Kind kind) {
    InstructionList list = l.list;
    const auto at = std::find_if(list.instructions.begin(), list.instructions.end(), [&](const Instruction& i) { return i.kind == kind; });
    list.instructions.erase(at);
    std::vector<std::string> codes;
    for (const Diagnostic& d : check_instructions(l.schedule, l.matching.tables[0], list)) codes.push_back(d.code);
    return codes;
  };
  EXPECT_EQ(codes_without(Kind::Wait), (std::vector<std::string>{"LIST-WAIT"}));
  EXPECT_EQ(codes_without(Kind::Free), (std::vector<std::string>{"LIST-BUFFER"}));
  EXPECT_EQ(codes_without(Kind::Record), (std::vector<std::string>{"LIST-EVENT", "LIST-WAIT"}));
  EXPECT_EQ(codes_without(Kind::Alloc).at(0), "LIST-BUFFER");
  EXPECT_EQ(codes_without(Kind::Mark).at(0), "LIST-ORDER");
}

TEST(Lower, random_schedules_pass_the_checks_with_at_most_one_wait_a_lane) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const Schedule schedule = test::random_schedule(seed, 60, test::Disturb::No);
    const Matching matching = match(schedule, Folding::None);
    for (const ProgramTables& tables : matching.tables) {
      const InstructionList list = lower(schedule, tables);
      for (const Diagnostic& d : check_instructions(schedule, tables, list)) ADD_FAILURE() << "seed " << seed << ": " << d.code << " " << d.text;
      for (std::uint32_t op = 0; op + 1 < tables.nodes.size(); ++op) ASSERT_LT(waits_of(list, op).size(), std::max(tables.lanes, 1u));
    }
  }
}

// Without any one of its waits a list is wrong: none is spare.
TEST(Lower, every_wait_of_random_schedules_is_needed) {
  std::size_t waits = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const Schedule schedule = test::random_schedule(seed, 40, test::Disturb::No);
    const Matching matching = match(schedule, Folding::None);
    for (const ProgramTables& tables : matching.tables) {
      const InstructionList list = lower(schedule, tables);
      for (std::size_t i = 0; i < list.instructions.size(); ++i) {
        if (list.instructions[i].kind != Kind::Wait) continue;
        InstructionList less = list;
        less.instructions.erase(less.instructions.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_FALSE(check_instructions(schedule, tables, less).empty()) << "seed " << seed << " instruction " << i;
        ++waits;
      }
    }
  }
  EXPECT_GT(waits, 100u);
}

}  // namespace
}  // namespace steptwin
