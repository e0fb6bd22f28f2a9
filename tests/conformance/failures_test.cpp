// What a backend promises when things go wrong: an op that fails, a stop, a deadline, a deadlock. Nothing hangs (ctest has a timeout), and
// the next run is as good as the first.
#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "schedule/base/error.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "tests/conformance/suite.h"

namespace steptwin::test {
namespace {

class Stopping : public Conformance {};
class Failing : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Every, Stopping, testing::ValuesIn(backends()), name_of_row);
INSTANTIATE_TEST_SUITE_P(Every, Failing, testing::ValuesIn(executors()), name_of_row);

// Each op of a schedule by the rank that issues it; programs have one rank here.
struct Position {
  RankId rank;
  OpId op;
};
std::vector<Position> positions(const Schedule& schedule) {
  std::vector<Position> all;
  for (const Program& program : schedule.programs)
    for (std::uint32_t k = 0; k < program.op_count; ++k) all.push_back({program.ranks.front(), OpId(program.first_op.value + k)});
  return all;
}

std::string what_of(const BackendUnderTest& backend, const Schedule& schedule, const ExecuteOptions& options, EnvironmentError::Kind kind) {
  try {
    backend.run(schedule, options);
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
  }
  return "nothing was thrown";
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

// Ops that must have ended before `op` may begin, by lane, dependency or HostWait of the same rank: none behind a failed op ever begins.
bool is_behind(const Schedule& schedule, OpId op, OpId failed) {
  if (op <= failed || schedule.program_of(op).first_op != schedule.program_of(failed).first_op) return false;
  const Op &mine = schedule.ops[op.value], &theirs = schedule.ops[failed.value];
  if (mine.lane.valid() && mine.lane == theirs.lane && !(mine.group.valid() && mine.group == theirs.group)) return true;
  const auto deps = schedule.deps_of(op);
  if (std::find(deps.begin(), deps.end(), failed) != deps.end()) return true;
  return std::holds_alternative<HostWait>(theirs.body);
}

TEST_P(Failing, an_op_that_fails_at_any_position_is_named_and_stops_all_ranks) {
  const Schedule schedule = every_kind();
  for (const Position& at : positions(schedule)) {
    std::mutex mutex;
    std::set<OpId> begun;
    ExecuteOptions options = conformance_options();
    options.before_op = [&](RankId rank, OpId op, std::uint32_t) {
      if (rank == at.rank && op == at.op) throw std::runtime_error("boom");
      const std::lock_guard lock(mutex);
      begun.insert(op);
    };
    const std::string text = what_of(GetParam(), schedule, options, EnvironmentError::Kind::Device);
    expect_part(text, fmt::format("rank {} failed", at.rank.value));
    expect_part(text, "op `" + print_op(schedule, at.op) + "` of step 0: ");
    expect_part(text, "boom");
    for (const OpId op : begun)
      EXPECT_FALSE(is_behind(schedule, op, at.op)) << print_op(schedule, op) << " began behind " << print_op(schedule, at.op);
  }
}

TEST_P(Failing, an_op_that_fails_in_a_later_step_names_the_step) {
  const Schedule schedule = every_kind();
  ExecuteOptions options = conformance_options(4);
  options.before_op = [&](RankId rank, OpId, std::uint32_t step) {
    if (rank == RankId(1) && step == 2) throw std::runtime_error("boom");
  };
  expect_part(what_of(GetParam(), schedule, options, EnvironmentError::Kind::Device), "of step 2: boom");
}

TEST_P(Failing, a_backend_runs_again_after_a_failure) {
  const Schedule schedule = every_kind();
  const ExecutionResult before = run(schedule);
  ExecuteOptions options = conformance_options();
  options.before_op = [](RankId rank, OpId, std::uint32_t) {
    if (rank == RankId(2)) throw std::runtime_error("boom");
  };
  what_of(GetParam(), schedule, options, EnvironmentError::Kind::Device);
  EXPECT_EQ(run(schedule).parameters, before.parameters);
}

TEST_P(Failing, our_own_errors_keep_kind_and_help) {
  ExecuteOptions options = conformance_options();
  options.before_op = [](RankId, OpId, std::uint32_t) { throw EnvironmentError(EnvironmentError::Kind::File, "no more", "buy a disk"); };
  try {
    GetParam().run(every_kind(), options);
    FAIL() << "nothing was thrown";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.kind(), EnvironmentError::Kind::File);
    EXPECT_EQ(error.help(), "buy a disk");
  }
  options.before_op = [](RankId, OpId, std::uint32_t) { throw InternalError("a broken promise"); };
  EXPECT_THROW(GetParam().run(every_kind(), options), InternalError);
}

// No computer has this buffer: the issuing thread fails, at any position.
TEST_P(Failing, an_error_while_issuing_names_rank_and_op) {
  for (int at = 0; at < 4; ++at) {
    std::string text = "mesh pp 2\ncomm c axes pp\n";
    for (int rank = 0; rank < 2; ++rank) {
      text +=
          fmt::format("program p{} ranks {}\n  lane run compute\n  lane net network\n  buffer x 4B\n  buffer huge 1024TiB\n", rank, rank);
      for (int k = 0; k < 4; ++k) text += fmt::format("  {} compute F one write {} lane run\n", k, k == at && rank == 1 ? "huge" : "x");
      text += rank == 0 ? "  4 send on c to 1 read x lane net after 3\n" : "  4 recv on c from 0 write x lane net after 3\n";
    }
    const Schedule schedule = sound_schedule(text);
    const std::string what = what_of(GetParam(), schedule, conformance_options(), EnvironmentError::Kind::Memory);
    expect_part(what, fmt::format("rank 1 failed while issuing op `{} compute F one write huge", at));
    expect_part(what, "memory for a buffer of 1125899906842624 bytes");
  }
}

TEST_P(Failing, resident_buffers_that_do_not_fit_name_the_rank) {
  const Schedule schedule = sound_schedule(
      "mesh pp 2\nprogram a ranks 0\n  lane run compute\n  0 compute F one\n"
      "program b ranks 1\n  lane run compute\n  buffer w param 1024TiB resident\n  0 compute F one\n");
  expect_part(what_of(GetParam(), schedule, conformance_options(), EnvironmentError::Kind::Memory),
              "rank 1 failed while allocating its resident buffers");
}

// ---- stop -----------------------------------------------------------------------------------------------------------
TEST_P(Failing, a_stop_at_any_position_interrupts_the_run) {
  const Schedule schedule = every_kind();
  for (const Position& at : positions(schedule)) {
    std::atomic<bool> stop{false};
    ExecuteOptions options = conformance_options(2);
    options.stop = &stop;
    options.before_op = [&](RankId rank, OpId op, std::uint32_t step) {
      if (step == 0 && rank == at.rank && op == at.op) stop = true;
    };
    const Trace trace = GetParam().run(schedule, options).trace;
    EXPECT_EQ(trace.outcome.status, Status::Interrupted) << print_op(schedule, at.op);
    EXPECT_EQ(trace.outcome.details.size(), schedule.programs.size());
    EXPECT_LT(trace.spans.size(), 2 * schedule.ops.size());
    for (const Span& span : trace.spans) EXPECT_LE(span.start, span.end);
  }
}

// Long enough that every backend looks at the flag.
TEST_P(Stopping, a_stop_before_the_run_ends_it_as_interrupted) {
  std::string text = "mesh pp 2\nprogram a ranks all\n  lane run compute\n  buffer x 4B\n";
  for (int k = 0; k < 1000; ++k) text += fmt::format("  {} compute F one write x time 1us\n", k);
  const std::atomic<bool> stop{true};
  ExecuteOptions options = conformance_options(200);
  options.stop = &stop;
  const Trace trace = GetParam().run(sound_schedule(text), options).trace;
  EXPECT_EQ(trace.outcome.status, Status::Interrupted);
  EXPECT_EQ(trace.outcome.text, "stopped by a signal");
}

// ---- hangs ----------------------------------------------------------------------------------------------------------
TEST_P(Stopping, a_deadlock_is_an_outcome_that_names_the_waiting_ranks) {
  const Schedule schedule = parse_schedule(
      "mesh pp 2\ncomm c axes pp\nprogram a ranks all\n  lane net network\n"
      "  0 send on c to +1 bytes 4B\n  1 recv on c from -1 bytes 4B\n",
      "t");
  const Outcome outcome = GetParam().run(schedule, conformance_options()).trace.outcome;
  EXPECT_EQ(outcome.status, Status::Deadlock);
  std::string details;
  for (const std::string& line : outcome.details) details += line + "\n";
  for (const char* part : {"rank 0", "rank 1", "0 send on c to +1"}) expect_part(details, part);
}

TEST_P(Failing, the_deadline_ends_a_hang_and_says_where_each_rank_stands) {
  const Schedule schedule = every_kind();
  for (const Program& program : schedule.programs) {
    ExecuteOptions options = conformance_options();
    options.deadline = std::chrono::milliseconds(20);
    options.before_op = [&](RankId rank, OpId op, std::uint32_t) {
      if (rank == program.ranks.front() && op == program.first_op) std::this_thread::sleep_for(std::chrono::milliseconds(80));
    };
    const std::string text = what_of(GetParam(), schedule, options, EnvironmentError::Kind::Device);
    expect_part(text, "the deadline of 20 ms passed in step 0\n");
    for (std::uint32_t rank = 0; rank < 3; ++rank) expect_part(text, fmt::format("\n  rank {} ", rank));
    expect_part(text, "stands at `");
  }
}

}  // namespace
}  // namespace steptwin::test
