// Blocks that enter once a step: BMTrain's 1F1B branch, specs/bmtrain.md 11 (B-F20, B-F26), in the ordinary form of a pipeline.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "schedule/base/error.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::compiled;
using test::program_text;
using test::simulated;
using Case = test::ZeroCase;

const char* const kOnce = R"("level": 3, "ends": "whole", "reshard": false, "reduce": "step", "enter": "step")";
const char* const kEveryTime = R"("level": 3, "ends": "whole", "reshard": false, "reduce": "step")";

Case branch(int pp, int micro_batches, int layers) {
  Case c;
  c.zero = kOnce;
  c.pp = pp, c.micro_batches = micro_batches, c.layers = layers;
  return c;
}

Schedule blocking(const Case& c) { return compiled(c, {{"schedule.p2p", "compute"}}); }

// Warm-up of p - stage - 1 forwards; steady forward, send-forward / receive-backward, backward, receive-forward then send-backward;
// cool-down. AG and Z with the first forward, RS behind the last backward, before its gradient is sent.
// Head and loss of a micro-batch run on the last stage, its embedding on the first.
TEST(EnterOnce, ProgramOfTwoStages) {
  const Schedule two = blocking(branch(2, 2, 2));
  EXPECT_EQ(program_text(two, 0), "embed AG0 Z0 F0 S0> embed F1 S1> <R0 FB0 embed' <R1 FB1 RS0 embed'");
  EXPECT_EQ(program_text(two, 1), "<R0 AG1 Z1 F0 head head' FB0 <R1 S0> F1 head head' FB1 RS1 S1>");
  const Schedule four = blocking(branch(2, 4, 2));
  EXPECT_EQ(program_text(four, 0),
            "embed AG0 Z0 F0 S0> embed F1 S1> <R0 FB0 embed' embed F2 S2> <R1 FB1 embed' embed F3 S3> <R2 FB2 embed' <R3 FB3 RS0 embed'");
  EXPECT_EQ(program_text(four, 1),
            "<R0 AG1 Z1 F0 head head' FB0 <R1 S0> F1 head head' FB1 <R2 S1> F2 head head' FB2 <R3 S2> F3 head head' FB3 RS1 S3>");
}

TEST(EnterOnce, LayersOfAStageEnterOneByOneAndLeaveOneByOne) {
  EXPECT_EQ(program_text(blocking(branch(2, 2, 4)), 1),
            "<R0 AG2 Z2 F0 AG3 Z3 F0 head head' FB0 FB0 <R1 S0> F1 F1 head head' FB1 RS3 FB1 RS2 S1>");
}

struct Counts {
  std::int64_t gathers = 0, fills = 0, reduces = 0;
  auto operator<=>(const Counts&) const = default;
};
Counts counts_of(const Schedule& s, const Program& program) {
  Counts n;
  for (const Op& op : s.ops_of(program)) {
    const std::string name = test::load_name(s, op);
    n.gathers += name.starts_with("AG") ? 1 : 0, n.fills += name.starts_with("Z") ? 1 : 0, n.reduces += name.starts_with("RS") ? 1 : 0;
  }
  return n;
}

// Without it a stage that has no other micro-batch in flight gathers again: the last one always.
TEST(EnterOnce, GathersAndReducesALayerOnceAStepWhateverTheMicroBatches) {
  for (const int pp : {1, 2, 4})
    for (const int rounds : {1, 2, 3}) {
      const Case c = branch(pp, pp * rounds, 2 * pp);
      const Schedule s = compiled(c);
      for (const Program& program : s.programs) EXPECT_EQ(counts_of(s, program), (Counts{2, 2, 2})) << pp << " " << rounds;
      Case every = c;
      every.zero = kEveryTime;
      const Schedule without = compiled(every);
      EXPECT_EQ(counts_of(without, without.programs.back()).gathers, 2 * pp * rounds);
    }
}

// From the first forward of the stage's last layer to its last backward: len_s gathered and len_s whole gradients, at every op. GPipe as
// BMTrain's released pipeline has the gradients from the first backward on alone.
TEST(EnterOnce, HoldsGatheredLayersAndWholeGradientsFromTheFirstForwardOn) {
  const auto held = [](const Schedule& s, const Program& program, std::uint32_t op, Category category) {
    return test::alive(s, program, op, [&](const Buffer& b) { return b.category == category && test::of_block(s, b) ? 1 : 0; });
  };
  const auto check = [&](const Schedule& s, std::int64_t gradients_in_forwards) {
    for (std::size_t stage = 0; stage < 2; ++stage) {
      const Program& program = s.programs[stage];
      const std::int64_t own = stage == 0 ? 3 : 2;
      std::int64_t forwards = 0;
      bool backwards = false, reduced = false;
      for (std::uint32_t i = 0; i < program.op_count; ++i) {
        const Op& op = s.ops[program.first_op.value + i];
        const bool layer = op.label.layer >= 0 && std::holds_alternative<Compute>(op.body);
        forwards += test::name_of_op(s, op).starts_with("F") && op.label.phase == Phase::Forward ? 1 : 0;
        backwards = backwards || op.label.phase == Phase::Backward;
        reduced = reduced || std::holds_alternative<ReduceScatter>(op.body);
        if (!layer || op.label.phase == Phase::None || forwards < own || reduced || (backwards && gradients_in_forwards == 0)) continue;
        EXPECT_EQ(held(s, program, i, Category::GatheredParam), own) << print_op(s, OpId(program.first_op.value + i));
        EXPECT_EQ(held(s, program, i, Category::Gradient), gradients_in_forwards * own) << print_op(s, OpId(program.first_op.value + i));
      }
      EXPECT_EQ(forwards, own * 4);
    }
  };
  check(compiled(branch(2, 4, 5)), 1);
  Case gpipe = branch(2, 4, 5);
  gpipe.order = "gpipe", gpipe.zero = kEveryTime;
  check(compiled(gpipe), 0);
}

// A layer a stage, gather g and reduction r, which all stages but the first have hidden: g + (M + p - 1)(f + b) + r.
TEST(EnterOnce, TakesTheTimeOf1f1bAndOneGatherAndOneReduction) {
  for (const int pp : {1, 2, 3, 4})
    for (const int rounds : {1, 2, 4}) {
      Case c = branch(pp, pp * rounds, pp);
      c.recompute = "none";
      Schedule s = compiled(c);
      for (Op& op : s.ops) {
        op.given = Duration(0);
        if (op.label.layer < 0) continue;
        const bool computes = std::holds_alternative<Compute>(op.body);
        if (computes && op.label.phase == Phase::Forward) op.given = Duration(50);  // of half a layer
        if (computes && op.label.phase == Phase::Backward) op.given = Duration(110);
        if (std::holds_alternative<AllGather>(op.body)) op.given = Duration(40);
        if (std::holds_alternative<ReduceScatter>(op.body)) op.given = Duration(30);
      }
      EXPECT_EQ(ns(simulated(s).makespan), 40 + (pp * rounds + pp - 1) * (100 + 220) + 30) << pp << " stages, " << rounds << " rounds";
    }
}

TEST(EnterOnce, HasNoProblemInAnyCombination) {
  std::size_t round = 0;
  for (const char* form : {"list", "block", "fsdp"})
    for (const char* ends : {"whole", "sharded"})
      for (const auto& [pp, dp] : {std::pair{1, 2}, {2, 1}, {2, 2}, {4, 2}})
        for (const char* p2p : {"compute", "compute_recv", "lanes", "one_lane", "grouped"})
          for (const char* order : {"1f1b", "gpipe"}) {
            Case c = branch(pp, 4, pp + 1);
            c.zero = fmt::format(R"({}, "form": "{}", "ends": "{}", "prefetch": {})",
                                 R"("level": 3, "reshard": false, "reduce": "step", "enter": "step")", form, ends, round % 3);
            c.dp = dp, c.order = order, c.tied = round % 2 == 0;
            c.recompute = round % 3 == 0 ? "none" : round % 3 == 1 ? "full" : test::kEveryTwo;
            ++round;
            const Schedule s = compiled(c, {{"schedule.p2p", p2p}});
            std::string text;
            for (const Diagnostic& d : verify(s, {Transport::Nccl})) text += format_diagnostic(d) + "\n";
            EXPECT_EQ(text, "") << c.zero << " pp " << pp << " dp " << dp << " " << p2p << " " << order;
            EXPECT_EQ(simulated(s).outcome.status, Status::Ok);
          }
}

TEST(EnterOnce, EveryDependencyThatGuardsABufferIsMissed) {
  const Schedule s = compiled(branch(2, 4, 4));
  std::size_t found = 0;
  for (std::uint32_t op = 0; op < s.ops.size(); ++op)
    for (std::uint32_t d = s.dep_offsets[op]; d < s.dep_offsets[op + 1]; ++d) {
      const bool race = test::problems_of(test::without_dependency(s, d)).find("RACE") != std::string::npos;
      EXPECT_TRUE(race || test::may_be_redundant(s, OpId(op))) << print_op(s, OpId(op));
      found += race ? 1 : 0;
    }
  EXPECT_GT(found, 20u);
}

TEST(EnterOnce, IsRefusedWithWhatItCannotBe) {
  const auto problem = [](const Case& c, const std::vector<Override>& overrides = {}) {
    try {
      compiled(c, overrides);
    } catch (const InputError& error) {
      return error.problems()[0].code + ": " + error.problems()[0].help;
    }
    return std::string("accepted");
  };
  const std::pair<int, std::string> kNearest[] = {{1, "4"}, {5, "4"}, {6, "8"}, {7, "8"}, {9, "8"}};  // B-F26, p = 4
  for (const auto& [m, legal] : kNearest) EXPECT_EQ(problem(branch(4, m, 4)), "PIPELINE: write \"micro_batches\": " + legal) << m;
  Case c = branch(4, 6, 4);
  c.order = "gpipe";
  EXPECT_EQ(problem(c), "accepted") << "no rounds";
  c = branch(2, 2, 2);
  EXPECT_EQ(problem(c), "accepted");
  EXPECT_EQ(problem(c, {{"zero.reshard", "true"}}), "ZERO: write \"reshard\": false");
  EXPECT_EQ(problem(c, {{"zero.reduce", "micro_batch"}}), "ZERO: write \"reduce\": \"step\"");
  c.order = "gpipe";
  EXPECT_EQ(problem(c, {{"pipeline", R"({"form": "bmtrain", "micro_batches": 2})"}}), "ZERO: remove \"enter\", or \"pipeline\"");
  c.zero = R"("level": 2, "enter": "step")";
  EXPECT_EQ(problem(c), "ZERO: write \"level\": 3, or remove \"enter\"");
}

}  // namespace
}  // namespace steptwin
