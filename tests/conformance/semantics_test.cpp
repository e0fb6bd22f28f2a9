// Every backend gives a whole trace that obeys its schedule; where data moves, it moves exactly.
#include <fmt/format.h>

#include <cmath>

#include "schedule/ir/verify.h"
#include "tests/conformance/suite.h"
#include "tests/support/random_schedule.h"
#include "traces/check_trace.h"

namespace steptwin::test {
namespace {

using Values = std::vector<float>;

INSTANTIATE_TEST_SUITE_P(Every, Conformance, testing::ValuesIn(backends()), name_of_row);

TEST_P(Conformance, an_empty_schedule_ends_well) {
  EXPECT_TRUE(run(sound_schedule("mesh pp 2\nprogram a ranks all\n  lane run compute\n"), 3).trace.spans.empty());
  EXPECT_TRUE(run(sound_schedule("mesh pp 2\nprogram a ranks 0\n")).trace.spans.empty());
}

// ---- one op of each kind --------------------------------------------------------------------------------------------
TEST_P(Conformance, compute_writes_its_output) {
  expect_t(run(sound_schedule("mesh pp 1\nlayout l\n  tensor t fp32 7 at 0\nprogram a ranks all\n  lane run compute\n"
                              "  buffer t param layout l resident\n  0 compute F one write t\n")),
           {{1, 2, 3, 4, 5, 1, 2}});
}

TEST_P(Conformance, all_gather_joins_the_shards_in_member_order) {
  const Values all{1, 2, 2, 3, 3, 4};
  expect_t(run(sound_schedule(
               one_op_per_rank(3, {2, 6}, "  buffer x 8B layout l2\n  buffer y param layout l6 resident\n", "gather on c read x write y"))),
           {all, all, all});
}

TEST_P(Conformance, reduce_scatter_gives_each_member_the_sum_of_its_shard) {
  const std::string buffers = "  buffer x 24B layout l6\n  buffer y param layout l2 resident\n";
  expect_t(run(sound_schedule(one_op_per_rank(3, {2, 6}, buffers, "reduce_scatter on c read x write y"))), {{6, 9}, {12, 15}, {18, 6}});
}

TEST_P(Conformance, all_reduce_sums_or_takes_the_maximum) {
  const std::string buffers = "  buffer x param layout l3 resident\n";
  const Values sum{6, 9, 12}, maximum{3, 4, 5};
  expect_t(run(sound_schedule(one_op_per_rank(3, {3}, buffers, "all_reduce on c update x"))), {sum, sum, sum});
  expect_t(run(sound_schedule(one_op_per_rank(3, {3}, buffers, "all_reduce on c max update x"))), {maximum, maximum, maximum});
}

TEST_P(Conformance, broadcast_gives_all_what_the_root_has) {
  std::string text = one_op_per_rank(3, {3}, "  buffer x param layout l3 resident\n", "broadcast on c root 1 MODE x");
  for (std::size_t rank = 0, at = 0; (at = text.find("MODE")) != std::string::npos; ++rank)
    text.replace(at, 4, rank == 1 ? "read" : "write");
  const Values root{2, 3, 4};
  expect_t(run(sound_schedule(text)), {root, root, root});
}

// Piece j of member i becomes piece i of member j.
TEST_P(Conformance, all_to_all_transposes) {
  const std::string buffers = "  buffer x 24B layout l6\n  buffer y param layout l6 resident\n";
  expect_t(run(sound_schedule(one_op_per_rank(3, {6}, buffers, "all_to_all on c read x write y"))),
           {{1, 2, 2, 3, 3, 4}, {3, 4, 4, 5, 5, 6}, {5, 1, 6, 2, 7, 3}});
}

TEST_P(Conformance, messages_move_between_two_ranks) {
  std::string text = one_op_per_rank(2, {3}, "  buffer x 12B layout l3\n  buffer t param layout l3 resident\n", "MESSAGE");
  text.replace(text.find("MESSAGE"), 7, "send on c to 1 read x");
  text.replace(text.find("MESSAGE"), 7, "recv on c from -1 write t");
  expect_t(run(sound_schedule(text)), {{2, 2, 2}, {1, 2, 3}});
}

TEST_P(Conformance, copies_move_between_all_spaces) {
  const char* const spaces[] = {"device", "pinned", "pageable", "storage"};
  for (const char* from : spaces) {
    for (const char* to : spaces) {
      for (const char* engine : {"copy_up", "copy_down", "storage", "host"}) {
        const std::string text = fmt::format(
            "mesh pp 1\nlayout l\n  tensor t fp32 3 at 0\nprogram a ranks all\n  lane run compute\n  lane move {}\n"
            "  buffer x {} layout l\n  buffer t param {} layout l resident\n  0 compute F one write x lane run\n"
            "  1 copy read x write t lane move after 0\n",
            engine, from, to);
        SCOPED_TRACE(text);
        expect_t(run(sound_schedule(text)), {{1, 2, 3}});
      }
    }
  }
}

// Small whole numbers survive the way through bf16.
TEST_P(Conformance, copies_cast) {
  expect_t(run(sound_schedule(
               "mesh pp 1\nlayout l\n  tensor t fp32 3 at 0\nlayout h\n  tensor t bf16 3 at 0\nprogram a ranks all\n  lane run compute\n"
               "  lane move copy_down\n  buffer x layout l\n  buffer y pinned layout h\n  buffer t param layout l resident\n"
               "  0 compute F one write x lane run\n  1 copy dtype fp32 to bf16 read x write y lane move after 0\n"
               "  2 copy dtype bf16 to fp32 read y write t lane move\n")),
           {{1, 2, 3}});
}

TEST_P(Conformance, the_host_waits_before_it_issues_more) {
  const Schedule s = sound_schedule(
      "mesh pp 1\nprogram a ranks all\n  lane run compute\n  lane other compute\n  buffer x 4B\n  buffer y 4B\n"
      "  0 compute F sleep write x lane run time 5us\n  1 host_wait for 0\n  2 compute F one write y lane other\n");
  const std::vector<Span> spans = run(s).trace.spans;
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_GE(spans[2].issue, spans[0].end);
}

// ---- order ----------------------------------------------------------------------------------------------------------
// One op feeds five lanes, one op reads all five: 1 + i % 5, then k % 7 + 1 + i % 5 on top, then the sum of all.
TEST_P(Conformance, dependencies_fan_out_and_in) {
  std::string text = "mesh pp 1\nlayout l\n  tensor t fp32 3 at 0\nprogram a ranks all\n  lane run compute\n";
  for (int i = 1; i <= 5; ++i) text += fmt::format("  lane l{} compute\n", i);
  text += "  buffer x 12B\n  buffer t param layout l resident\n";
  for (int i = 1; i <= 5; ++i) text += fmt::format("  buffer y{} 12B\n", i);
  text += "  0 compute F first write x lane run time 1us\n";
  for (int i = 1; i <= 5; ++i) text += fmt::format("  {} compute F sleep read x write y{} lane l{} after 0 time {}us\n", i, i, i, i);
  text += "  6 compute F join read y1 read y2 read y3 read y4 read y5 write t lane run after 1-5\n";
  Values expected;
  for (int i = 0; i < 3; ++i) {
    int sum = 7 + i;  // op 6
    for (int k = 1; k <= 5; ++k) sum += (k + 1 + i) + (1 + i);
    expected.push_back(static_cast<float>(sum % 64));
  }
  expect_t(run(sound_schedule(text)), {expected});
}

// A chain that changes lane at every op: each adds to what the one before left.
TEST_P(Conformance, lanes_wait_for_each_other) {
  constexpr int kOps = 30;
  std::string text =
      "mesh pp 1\nlayout l\n  tensor t fp32 2 at 0\nprogram a ranks all\n  lane l0 compute\n  lane l1 compute\n  lane l2 compute\n";
  text += "  buffer t param layout l resident\n";
  float first = 2, second = 2;  // t as it starts
  for (int k = 0; k < kOps; ++k) {
    text += fmt::format("  {} compute F link update t lane l{} {} time {}us\n", k, k * k % 3, k == 0 ? "" : fmt::format("after {}", k - 1),
                        k % 4);
    first = std::fmod(first + static_cast<float>(k % 7 + 1), 64.0f);
    second = std::fmod(second + static_cast<float>(k % 7 + 2), 64.0f);
  }
  expect_t(run(sound_schedule(text)), {{first, second}});
}

// ---- groups ---------------------------------------------------------------------------------------------------------
// Every rank sends both ways round the ring in one group, on two communicators.
TEST_P(Conformance, a_group_of_messages_on_two_communicators) {
  constexpr std::uint32_t kRanks = 4;
  std::string text = "mesh pp 4\ncomm right axes pp\ncomm left axes pp\nlayout l\n  tensor t fp32 2 at 0\n";
  for (std::uint32_t r = 0; r < kRanks; ++r) {
    text +=
        fmt::format("program p{} ranks {}\n  lane run compute\n  lane net network\n  buffer x 8B layout l\n  buffer a 8B layout l\n", r, r);
    text += "  buffer b 8B layout l\n  buffer t param layout l resident\n";
    for (std::uint32_t k = 0; k < r; ++k) text += fmt::format("  {} compute F idle lane run\n", k);
    text += fmt::format("  {} compute F fill write x lane run\n", r);
    const char* const messages[] = {"send on right to +1 read x", "send on left to -1 read x", "recv on right from -1 write a",
                                    "recv on left from +1 write b"};
    for (std::uint32_t m = 0; m < 4; ++m)
      text += fmt::format("  {} {} lane net {} group 0\n", r + 1 + m, messages[m], fmt::format("after {}", r));
    text += fmt::format("  {} compute F add read a read b write t lane run after {}-{}\n", r + 5, r + 3, r + 4);
  }
  std::vector<Values> expected;
  for (std::uint32_t r = 0; r < kRanks; ++r) {
    const std::uint32_t before = (r + 3) % 4, behind = (r + 1) % 4, op = (r + 5) % 7;
    expected.push_back({static_cast<float>(op + 1 + before + 1 + behind + 1), static_cast<float>(op + 2 + before + 2 + behind + 2)});
  }
  expect_t(run(sound_schedule(text)), expected);
}

// Rows and columns of a 2 x 2 mesh in one group; the order inside a group is free.
TEST_P(Conformance, a_group_of_collectives_on_two_communicators) {
  std::string text = "mesh pp 2 dp 2\ncomm row axes dp\ncomm column axes pp\nlayout l\n  tensor t fp32 1 at 0\n";
  for (int r = 0; r < 4; ++r) {
    text +=
        fmt::format("program p{} ranks {}\n  lane run compute\n  lane net network\n  buffer x 4B layout l\n  buffer y 4B layout l\n", r, r);
    text += "  buffer t param layout l resident\n";
    for (int k = 0; k < r; ++k) text += fmt::format("  {} compute F idle lane run\n", k);
    text += fmt::format("  {} compute F fill write x lane run\n  {} compute F fill write y lane run\n", r, r + 1);
    const std::string row = fmt::format("all_reduce on row update x lane net after {} group 0", r);
    const std::string column = fmt::format("all_reduce on column update y lane net after {} group 0", r + 1);
    text += fmt::format("  {} {}\n  {} {}\n", r + 2, row, r + 3, column);
    text += fmt::format("  {} compute F add read x read y write t lane run after {}-{}\n", r + 4, r + 2, r + 3);
  }
  // x = r + 1, y = r + 2; row {0,1} {2,3}, column {0,2} {1,3}; the last op adds (r + 4) % 7 + 1.
  expect_t(run(sound_schedule(text)), {{3 + 6 + 5}, {3 + 8 + 6}, {7 + 6 + 7}, {7 + 8 + 1}});
}

TEST_P(Conformance, groups_of_several_ranks_interleave) {
  // Rank 0 gathers from 1 and 2 in one group while they also exchange with each other in a group of their own, twice.
  std::string text = "mesh pp 3\ncomm c axes pp\ncomm d axes pp\n";
  text += "program a ranks 0\n  lane net network\n";
  for (int k = 0; k < 2; ++k)
    text += fmt::format("  {} recv on c from 1 bytes 4B group {}\n  {} recv on c from 2 bytes 4B group {}\n", 2 * k, k, 2 * k + 1, k);
  for (int r = 1; r < 3; ++r) {
    text += fmt::format("program p{} ranks {}\n  lane net network\n", r, r);
    for (int k = 0; k < 2; ++k) {
      text += fmt::format("  {} send on d to {} bytes 4B group {}\n  {} recv on d from {} bytes 4B group {}\n", 3 * k, 3 - r, k, 3 * k + 1,
                          3 - r, k);
      text += fmt::format("  {} send on c to 0 bytes 4B group {}\n", 3 * k + 2, k);
    }
  }
  EXPECT_EQ(run(sound_schedule(text), 2).trace.spans.size(), 2u * (4 + 6 + 6));
}

// ---- guards, repetitions, everything ---------------------------------------------------------------------------------
TEST_P(Conformance, a_guarded_op_takes_its_place_and_works_only_when_allowed) {
  const std::string head =
      "mesh pp 1\nlayout one\n  tensor ok fp32 1 at 0\nlayout l\n  tensor t fp32 2 at 0\nprogram a ranks all\n  lane run compute\n"
      "  buffer t param layout l resident\n";
  expect_t(run(sound_schedule(head + "  buffer ok layout one\n  0 compute U flag write ok\n  1 compute U one write t when ok\n")),
           {{2, 3}});
  const ExecutionResult off = run(sound_schedule(head + "  buffer ok layout one resident\n  0 compute U one write t when ok\n"));
  expect_t(off, {{2, 2}});  // resident buffers start as zero: false
  EXPECT_EQ(off.trace.spans.size(), 1u);
}

// every_kind, by hand: op c of rank r (c = 6, 8, 4) writes x = 7, 2, 5 (+ i % 5); their sum 14 17 20 23 26 14 goes through shards, host
// memory and the root to d on all ranks; rank r then has d's pair r thrice, passes it on, adds 5, 7, 3 (+ i % 5); the sum of those over the
// ranks is t.
TEST_P(Conformance, every_kind_in_one_schedule) {
  const Values t{75, 72, 81, 78, 87, 69};
  expect_t(run(every_kind()), {t, t, t});
}

TEST_P(Conformance, two_runs_in_a_row_are_alike) {
  const Schedule schedule = every_kind();
  const ExecutionResult first = run(schedule, 3), second = run(schedule, 3);
  EXPECT_EQ(first.parameters, second.parameters);
  EXPECT_EQ(first.allocated, second.allocated);
  EXPECT_EQ(first.trace.spans.size(), 3u * schedule.ops.size());
  EXPECT_EQ(first.trace.op_count, 3u * schedule.ops.size());
  for (std::size_t i = 0; !executes() && i < first.trace.spans.size(); ++i) EXPECT_EQ(first.trace.spans[i].end, second.trace.spans[i].end);
}

TEST_P(Conformance, warm_up_repetitions_leave_no_spans) {
  const Schedule schedule = every_kind();
  ExecuteOptions options = conformance_options(2);
  options.warm_up = 2;
  const ExecutionResult result = GetParam().run(schedule, options);
  EXPECT_EQ(result.trace.outcome.status, Status::Ok);
  for (const Diagnostic& d : check_trace(schedule, result.trace, 2)) ADD_FAILURE() << d.code << " " << d.text;
}

TEST_P(Conformance, random_schedules_obey_their_order) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Schedule schedule = holding(random_memory_schedule(1000 + seed, 40));
    SCOPED_TRACE(seed);
    ASSERT_FALSE(has_errors(verify(schedule)));
    run(schedule, 2);
  }
}

}  // namespace
}  // namespace steptwin::test
