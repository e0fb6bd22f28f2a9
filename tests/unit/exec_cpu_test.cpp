// The CPU backend without LibTorch (compute ops: tests/fake_ops): data movement exact, order, memory curve, failures, modes alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "exec/cpu/execution.h"
#include "schedule/base/error.h"
#include "schedule/compile.h"
#include "schedule/ir/liveness.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "tests/support/random_schedule.h"
#include "tests/support/rehearsal.h"
#include "traces/check_trace.h"

namespace steptwin {
namespace {

ExecuteOptions options_of(ExecutionMode mode, std::uint32_t steps = 1, std::uint32_t warm_up = 0) {
  ExecuteOptions options;
  options.mode = mode;
  options.compute_slots = 2;
  options.steps = steps;
  options.warm_up = warm_up;
  options.text.resize(4096);
  for (std::size_t i = 0; i < options.text.size(); ++i) options.text[i] = static_cast<std::uint8_t>(i * 7 + i / 13);
  options.keep_gradients = true;
  return options;
}

void expect_obeys(const Schedule& schedule, const ExecutionResult& result, std::uint32_t steps, const std::string& what) {
  ASSERT_EQ(result.trace.outcome.status, Status::Ok) << what;
  for (const Diagnostic& d : check_trace(schedule, result.trace, steps)) ADD_FAILURE() << what << ": " << d.code << " " << d.text;
}

void expect_predicted_memory(const Schedule& schedule, const ExecutionResult& result, const std::string& what) {
  const std::vector<ProgramId> program_of = schedule.program_of_rank();
  for (std::size_t i = 0; i < result.trace.simulated.size(); ++i) {
    const Program& program = schedule.programs[program_of[result.trace.simulated[i].value].value];
    for (std::size_t s = 0; s < kSpaces; ++s) {
      const std::vector<Bytes> curve = allocated_curve(schedule, program, static_cast<Space>(s), Repetition::First);
      const std::vector<std::int64_t>& measured = result.allocated[s][i];
      ASSERT_EQ(measured.size(), curve.size());
      for (std::size_t k = 0; k < curve.size(); ++k)
        ASSERT_EQ(measured[k], curve[k].value) << what << " space " << s << " rank " << i << " op " << k;
    }
  }
}

class Modes : public testing::TestWithParam<ExecutionMode> {};
INSTANTIATE_TEST_SUITE_P(Exec, Modes, testing::Values(ExecutionMode::Interp, ExecutionMode::Threads),
                         [](const auto& p) { return p.param == ExecutionMode::Interp ? "interp" : "threads"; });

// Rank r computes (op number % 7 + 1) + i % 5 into x; what arrives is checked through resident gradients, captured at the end.
TEST_P(Modes, a_message_carries_the_sender_s_bytes) {
  const Schedule s = parse_schedule(R"(mesh pp 2
comm c axes pp
layout l
  tensor t fp32 4 at 0
program a ranks 0
  lane run compute
  lane net network
  buffer x 16B
  0 compute F one write x lane run
  1 send on c to 1 dtype fp32 read x lane net after 0
program b ranks 1
  lane net network
  buffer g gradient layout l resident
  0 recv on c from 0 write g
)", "t");
  ASSERT_FALSE(has_errors(verify(s)));
  const ExecutionResult result = execute_on_cpu(s, options_of(GetParam()));
  expect_obeys(s, result, 1, "message");
  EXPECT_EQ(result.gradients.at("t"), (std::vector<float>{1, 2, 3, 4}));
}

TEST_P(Modes, an_all_reduce_sums_over_its_members) {
  const Schedule s = parse_schedule(R"(mesh dp 3
comm c axes dp
layout l
  tensor t fp32 4 at 0
program a ranks 0-1
  lane run compute
  lane net network
  buffer g gradient layout l resident
  0 compute F one write g lane run
  1 all_reduce on c update g after 0
program b ranks 2
  lane run compute
  lane net network
  buffer g gradient layout l resident
  buffer x 4B
  0 compute F other write x lane run
  1 compute F two write g lane run
  2 all_reduce on c update g after 1
)", "t");
  ASSERT_FALSE(has_errors(verify(s)));
  const ExecutionResult result = execute_on_cpu(s, options_of(GetParam()));
  expect_obeys(s, result, 1, "all_reduce");
  EXPECT_EQ(result.gradients.at("t"), (std::vector<float>{1 + 1 + 2, 2 + 2 + 3, 3 + 3 + 4, 4 + 4 + 5}));
}

TEST_P(Modes, an_op_that_fails_names_rank_and_op_and_stops_all) {
  const Schedule s = parse_schedule(R"(mesh pp 2
comm c axes pp
program a ranks 0
  lane run compute
  lane net network
  buffer x 16B
  0 compute F one write x lane run
  1 recv on c from 1 write x lane net after 0
program b ranks 1
  lane run compute
  lane net network
  buffer x 16B
  0 compute F fail write x lane run
  1 send on c to 0 read x lane net after 0
)", "t");
  try {
    execute_on_cpu(s, options_of(GetParam()));
    FAIL() << "no exception";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.kind(), EnvironmentError::Kind::Device);
    EXPECT_NE(std::string(error.what()).find("rank 1 failed at op `0 compute F fail"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("boom"), std::string::npos);
  }
}

TEST_P(Modes, a_deadlock_is_an_outcome_that_says_where_each_rank_stands) {
  const Schedule s = parse_schedule(R"(mesh pp 2
comm c axes pp
program a ranks 0
  lane net network
  0 recv on c from 1 bytes 4B
  1 send on c to 1 bytes 4B
program b ranks 1
  lane net network
  0 recv on c from 0 bytes 4B
  1 send on c to 0 bytes 4B
)", "t");
  const ExecutionResult result = execute_on_cpu(s, options_of(GetParam()));
  EXPECT_EQ(result.trace.outcome.status, Status::Deadlock);
  ASSERT_EQ(result.trace.outcome.details.size(), 2u);
  EXPECT_EQ(result.trace.outcome.details[0].find("rank 0 (step 0) stands at `0 recv"), 0u) << result.trace.outcome.details[0];
}

TEST_P(Modes, the_deadline_ends_a_step_that_takes_too_long) {
  std::string text = "mesh pp 1\nprogram a ranks all\n  lane run compute\n  buffer x 4B\n";
  for (int i = 0; i < 200; ++i) text += "  " + std::to_string(i) + " compute F sleep update x\n";
  text.replace(text.find("update x"), 8, "write x");
  ExecuteOptions options = options_of(GetParam());
  options.deadline = std::chrono::milliseconds(30);
  try {
    execute_on_cpu(parse_schedule(text, "t"), options);
    FAIL() << "no exception";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("deadline of 30 ms passed in step 0\n  rank 0 (step 0) stands at"), std::string::npos) << error.what();
  }
}

TEST_P(Modes, the_stop_flag_ends_the_run_as_interrupted) {
  const std::atomic<bool> stop{true};
  ExecuteOptions options = options_of(GetParam());
  options.stop = &stop;
  const Schedule s = parse_schedule("mesh pp 1\nprogram a ranks all\n  lane run compute\n  0 compute F one\n", "t");
  EXPECT_EQ(execute_on_cpu(s, options).trace.outcome.status, Status::Interrupted);
}

TEST_P(Modes, memory_that_does_not_exist_names_rank_and_op) {
  const Schedule s = parse_schedule(
      "mesh pp 1\nprogram a ranks all\n  lane run compute\n  buffer x 4B\n  buffer huge 1024TiB\n"
      "  0 compute F one write x\n  1 compute F one write huge\n", "t");
  try {
    execute_on_cpu(s, options_of(GetParam()));
    FAIL() << "no exception";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(error.kind(), EnvironmentError::Kind::Memory);
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 0 failed while issuing op `1 compute F one write huge"));
  }
}

// Ids and losses are copied by the run itself: a text that declares them otherwise must not make it write beyond them.
TEST(Exec, ids_and_losses_in_another_form_are_refused) {
  const auto refusal = [](const std::string& ids, const std::string& loss) -> std::string {
    const std::string text = "mesh pp 1\nlayout ids\n  tensor ids " + ids + " at 0\nlayout loss\n  tensor loss " + loss +
                             " at 0\nprogram a ranks all\n  lane run compute\n  buffer tokens input layout ids resident\n"
                             "  buffer l layout loss\n  0 compute F one read tokens write l\n";
    const Schedule s = parse_schedule(text, "t");
    EXPECT_FALSE(has_errors(verify(s)));
    try {
      execute_on_cpu(s, options_of(ExecutionMode::Interp));
      return "";
    } catch (const EnvironmentError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal("int64 2x3x5", "fp32 1"), "");
  for (const char* const ids : {"int32 2x3x10", "int64 2x15", "int64 30", "fp32 2x3x5"})
    EXPECT_THAT(refusal(ids, "fp32 1"), testing::HasSubstr("program a cannot be executed: layout ids must be one int64 tensor")) << ids;
  for (const char* const loss : {"bf16 1", "fp32 2", "int64 1"})
    EXPECT_THAT(refusal("int64 2x3x5", loss), testing::HasSubstr("layout loss must be one fp32 value")) << loss;
}

// A large model draws its parameters for minutes.
TEST(Exec, the_stop_flag_ends_the_drawing_of_parameters) {
  test::GivenPipeline pipeline;
  const Schedule s = compile(parse_scenario(test::scenario_text(pipeline), "t"));
  const std::atomic<bool> stop{true};
  ExecuteOptions options = options_of(ExecutionMode::Interp);
  options.stop = &stop;
  const ExecutionResult result = execute_on_cpu(s, options);
  EXPECT_EQ(result.trace.outcome.status, Status::Interrupted);
  ASSERT_FALSE(result.parameters.empty());
  ASSERT_FALSE(result.parameters[0].empty());
  for (const NamedValues& rank : result.parameters)
    for (const auto& [name, tensor] : rank) EXPECT_THAT(tensor, testing::Each(0.0f)) << name;
}

TEST_P(Modes, an_empty_schedule_and_two_runs_in_a_row) {
  const Schedule s = parse_schedule("mesh pp 2\nprogram a ranks all\n  lane run compute\n", "t");
  for (int i = 0; i < 2; ++i) {
    const ExecutionResult result = execute_on_cpu(s, options_of(GetParam(), 3));
    EXPECT_EQ(result.trace.outcome.status, Status::Ok);
    EXPECT_TRUE(result.trace.spans.empty());
  }
}

TEST_P(Modes, random_schedules_obey_their_order_and_memory_curve) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Schedule s = test::holding(test::random_memory_schedule(seed, 50));
    ASSERT_FALSE(has_errors(verify(s)));
    const ExecutionResult result = execute_on_cpu(s, options_of(GetParam(), 2));
    expect_obeys(s, result, 2, "seed " + std::to_string(seed));
    expect_predicted_memory(s, result, "seed " + std::to_string(seed));
  }
}

TEST_P(Modes, the_memory_curve_of_every_space_is_the_predicted_one) {
  const Schedule s = parse_schedule(
      "mesh pp 1\nprogram a ranks all\n  lane run compute\n  lane up copy_up\n  lane down copy_down\n  buffer x 100B\n  buffer y pinned 100B\n"
      "  buffer z storage 100B\n  buffer r pageable 7B resident\n  0 compute F one write x lane run\n  1 copy dtype uint8 read x write y lane down after 0\n"
      "  2 copy dtype uint8 read y write z lane down\n  3 copy dtype uint8 read z write x lane up after 2\n", "t");
  ASSERT_FALSE(has_errors(verify(s)));
  const ExecutionResult result = execute_on_cpu(s, options_of(GetParam(), 2));
  expect_predicted_memory(s, result, "spaces");
  EXPECT_EQ(result.allocated[static_cast<std::size_t>(Space::Pinned)][0], (std::vector<std::int64_t>{0, 100, 100, 0}));
  EXPECT_EQ(result.allocated[static_cast<std::size_t>(Space::Storage)][0], (std::vector<std::int64_t>{0, 0, 100, 100}));
  EXPECT_EQ(result.allocated[static_cast<std::size_t>(Space::Pageable)][0], (std::vector<std::int64_t>{7, 7, 7, 7}));
}

// T: measured `allocated` equals the predicted one at every op: gpipe and 1f1b x recompute x pp x dp (issue 3, "Memory").
TEST_P(Modes, compiled_schedules_obey_their_order_and_memory_curve) {
  for (const std::string order : {"gpipe", "1f1b"}) {
    for (const std::string recompute : {"none", "full"}) {
      for (const std::int64_t p : {1, 2, 4}) {
        for (const std::int64_t dp : {1, 2}) {
          test::GivenPipeline pipeline;
          pipeline.order = order, pipeline.recompute = recompute, pipeline.p = p, pipeline.dp = dp, pipeline.m = 4, pipeline.tied = dp == 2;
          const Schedule s = compile(parse_scenario(test::scenario_text(pipeline), "t"));
          const std::string what = order + " " + recompute + " pp " + std::to_string(p) + " dp " + std::to_string(dp);
          const ExecutionResult result = execute_on_cpu(s, options_of(GetParam(), 2, 1));
          expect_obeys(s, result, 2, what);
          expect_predicted_memory(s, result, what);
          EXPECT_EQ(result.losses.size(), 2u) << what;
        }
      }
    }
  }
}

TEST(Exec, threads_and_repeated_runs_give_the_bits_of_interp) {
  for (const std::int64_t dp : {1, 2}) {
    test::GivenPipeline pipeline;
    pipeline.p = 4, pipeline.dp = dp, pipeline.m = 6, pipeline.tied = true;
    const Schedule s = compile(parse_scenario(test::scenario_text(pipeline), "t"));
    const ExecutionResult reference = execute_on_cpu(s, options_of(ExecutionMode::Interp, 2));
    ASSERT_FALSE(reference.gradients.empty());
    for (const ExecutionMode mode : {ExecutionMode::Interp, ExecutionMode::Threads}) {
      for (int i = 0; i < 3; ++i) {
        const ExecutionResult again = execute_on_cpu(s, options_of(mode, 2));
        EXPECT_EQ(again.losses, reference.losses);
        EXPECT_EQ(again.gradients, reference.gradients);
      }
    }
  }
}

TEST(Exec, check_trace_finds_a_broken_order) {
  test::GivenPipeline pipeline;
  pipeline.p = 2, pipeline.m = 2;
  const Schedule s = compile(parse_scenario(test::scenario_text(pipeline), "t"));
  const ExecutionResult result = execute_on_cpu(s, options_of(ExecutionMode::Interp));
  const auto codes = [&](const std::function<void(Span&)>& change, std::size_t index) {
    Trace trace = result.trace;
    change(trace.spans[index]);
    std::vector<std::string> found;
    for (const Diagnostic& d : check_trace(s, trace, 1)) found.push_back(d.code);
    return found;
  };
  const auto first = [&](const char* kind) {
    const auto found = std::find_if(result.trace.spans.begin(), result.trace.spans.end(),
                                    [&](const Span& span) { return std::string(kind_name(s.ops[span.op.value].body)) == kind; });
    return static_cast<std::size_t>(found - result.trace.spans.begin());
  };
  const Duration second(1'000'000'000);
  EXPECT_EQ(codes([](Span& span) { span.op = OpId(span.op.value + 1); }, 0), (std::vector<std::string>{"SPAN", "SPAN"}));
  EXPECT_THAT(codes([&](Span& span) { span.end += second; }, first("compute")), testing::Contains("LANE"));
  EXPECT_THAT(codes([&](Span& span) { span.end += second; }, first("recv")), testing::Contains("DEPENDENCY"));
  EXPECT_THAT(codes([&](Span& span) { span.end += second; }, first("recv")), testing::Contains("MEMBER"));
  EXPECT_THAT(codes([&](Span& span) { span.ready -= second, span.start -= second; }, first("recv")), testing::Contains("MEMBER"));
  EXPECT_THAT(codes([&](Span& span) { span.issue += second; }, 0), testing::Contains("SPAN"));
}

// Simulated traces pass the same check, folded ones too.
TEST(Exec, simulated_traces_obey_too) {
  for (const std::int64_t dp : {1, 4}) {
    test::GivenPipeline pipeline;
    pipeline.p = 4, pipeline.dp = dp, pipeline.m = 8, pipeline.hop_ns = 100;
    SimulateOptions options;
    options.steps = 2;
    const test::Rehearsal rehearsal = test::rehearse(pipeline, options);
    for (const Diagnostic& d : check_trace(rehearsal.schedule, rehearsal.trace, 2)) ADD_FAILURE() << d.code << " " << d.text;
  }
}

}  // namespace
}  // namespace steptwin
