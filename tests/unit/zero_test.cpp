// The programs that ZeRO makes: specs/bmtrain.md 4-9 and BM-06, BM-08, BM-10, BM-13.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "schedule/base/error.h"
#include "schedule/compile.h"
#include "schedule/ir/text.h"
#include "sim/cost/stated.h"
#include "sim/simulate.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::compiled;
using test::load_name;
using test::load_program;
using test::may_be_redundant;
using test::problems_of;
using test::simulated;
using test::without_dependency;
using Case = test::ZeroCase;
using test::kEveryTwo;

TEST(ZeroProgram, LoadLaneOfTheThreeForms) {  // BM-06
  Case c;
  EXPECT_EQ(load_program(compiled(c)), "AG0 AG1 AG2 | AG2 Z2 AG1 Z1 RS2 AG0 Z0 RS1 RS0");
  c.zero = R"("level": 3, "ends": "whole", "reshard": false)";
  EXPECT_EQ(load_program(compiled(c)), "AG0 AG1 AG2 | Z2 Z1 RS2 Z0 RS1 RS0");
  c.zero = R"("level": 3, "ends": "whole", "form": "block")";
  EXPECT_EQ(load_program(compiled(c)), "AG0 AG1 AG2 | AG2 Z2 RS2 AG1 Z1 RS1 AG0 Z0 RS0");
}

TEST(ZeroProgram, LoadLaneWithFrozenParameters) {  // B-F16: no gradient buffer, no reduction; without a backward not entered
  const auto program = [](const char* frozen, Case c = {}) {
    const Schedule s = compiled(c, {{"model.frozen", frozen}});
    EXPECT_EQ(problems_of(s), "");
    return load_program(s);
  };
  EXPECT_EQ(program(R"(["layers.0.*"])"), "AG0 AG1 AG2 | AG2 Z2 AG1 Z1 RS2 AG0 RS1") << "passed through, to the embedding";
  EXPECT_EQ(program(R"(["layers.1.*"])"), "AG0 AG1 AG2 | AG2 Z2 AG1 RS2 AG0 Z0 RS0");
  EXPECT_EQ(program(R"(["layers.2.*"])"), "AG0 AG1 AG2 | AG2 AG1 Z1 AG0 Z0 RS1 RS0");
  EXPECT_EQ(program(R"(["embed*", "layers.0.*"])"), "AG0 AG1 AG2 | AG2 Z2 AG1 Z1 RS2 RS1");
  EXPECT_EQ(program(R"(["embed*", "layers.0-1.*"])"), "AG0 AG1 AG2 | AG2 Z2 RS2");
  EXPECT_EQ(program(R"(["embed*", "layers.*"])"), "AG0 AG1 AG2 |");
  EXPECT_EQ(program(R"(["layers.*.weight"])"),  // two groups a block, one NCCL group
            "AG0 AG0 AG1 AG1 AG2 AG2 | AG2 AG2 Z2 AG1 AG1 Z1 RS2 AG0 AG0 Z0 RS1 RS0");
  Case kept;
  kept.zero = R"("level": 3, "ends": "whole", "reshard": false)";
  kept.micro_batches = 2;  // a block without a backward is not kept for one
  kept.recompute = "none";
  EXPECT_EQ(program(R"(["embed*", "layers.0-1.*"])", kept), "AG0 AG1 AG2 | Z2 RS2 AG0 AG1 AG2 | Z2 RS2");
}

TEST(ZeroTraffic, OnlyTrainedGroupsAreReduced) {  // W = 3; a layer of hidden 60 at steps of 512 bytes
  Case c;
  c.dp = 3;
  const Schedule s = compiled(c, {{"model.frozen", R"(["layers.*.weight"])"}});
  std::int64_t gathered = 0, reduced = 0;
  for (const Op& op : s.ops_of(s.programs[0])) {
    if (const auto* gather = std::get_if<AllGather>(&op.body)) gathered += gather->bytes.value;
    if (const auto* reduce = std::get_if<ReduceScatter>(&op.body)) reduced += reduce->bytes.value;
  }
  // Weights: 60 -> 256, 180 x 60 = 10800 -> 11008, 3600 -> 3840, 60 -> 256, 14400 -> 14592 twice: 44544 elements, of three ranks 44544.
  // Biases: six of at most 256 elements: 1536.
  EXPECT_EQ(gathered, 3 * 2 * 2 * (44544 + 1536)) << "three layers, forward and backward, bf16";
  EXPECT_EQ(reduced, 3 * 4 * 1536) << "fp32";
}

// Section 7: a re-forwarded block enters without gradients; the reduction behind it comes after its gather.
TEST(ZeroProgram, LoadLaneOfTheSqrtList) {
  Case c;
  c.recompute = "sqrt";
  EXPECT_EQ(load_program(compiled(c)), "AG0 AG1 AG2 | AG2 Z2 AG0 RS2 AG1 Z1 AG0 Z0 RS1 RS0");
  c.zero = R"("level": 3, "ends": "whole", "reshard": false)";
  EXPECT_EQ(load_program(compiled(c)), "AG0 AG1 AG2 | Z2 RS2 Z1 Z0 RS1 RS0");
}

TEST(ZeroTraffic, SqrtListGathersOnceMoreForEveryLayerWithoutSlot) {  // BM-08: 2L + L - slots
  for (const auto& [layers, slots] : {std::pair{1, 1}, {2, 2}, {3, 2}, {8, 4}, {12, 5}, {24, 7}}) {
    Case c;
    c.layers = layers;
    c.recompute = "sqrt";
    std::int64_t gathers = 0, reduces = 0;
    for (const Op& op : compiled(c).ops) {
      gathers += op.label.layer >= 0 && std::holds_alternative<AllGather>(op.body) ? 1 : 0;
      reduces += op.label.layer >= 0 && std::holds_alternative<ReduceScatter>(op.body) ? 1 : 0;
    }
    EXPECT_EQ(gathers, 3 * layers - slots);
    EXPECT_EQ(reduces, layers);
  }
}

// BM-10, the block list: stage 1 of two, a layer each, two micro-batches. All forwards, then backwards in the same order; one gather, one
// reduction, which is queued before the last gradient is sent.
TEST(ZeroProgram, OneGatherAndOneReductionInAPipeline) {
  Case c;
  c.layers = 2;
  c.pp = 2;
  c.micro_batches = 2;
  c.order = "gpipe";
  c.tied = false;
  c.zero = R"("level": 3, "ends": "whole", "reshard": false, "reduce": "step")";
  const Schedule s = compiled(c);
  std::string text;
  for (const Op& op : s.ops_of(s.programs[1])) {
    const std::string load = load_name(s, op), segment(s.name(op.label.segment));
    if (!load.empty()) text += load + " ";
    if (std::holds_alternative<Send>(op.body)) text += fmt::format("S{}> ", op.label.micro_batch);
    if (std::holds_alternative<Recv>(op.body)) text += fmt::format("<R{} ", op.label.micro_batch);
    if (segment == "mlp" && op.label.phase == Phase::Forward) text += fmt::format("F{} ", op.label.micro_batch);
    if (segment == "attn" && op.label.phase == Phase::Backward) text += fmt::format("FB{} ", op.label.micro_batch);
  }
  EXPECT_EQ(text, "<R0 AG1 F0 <R1 F1 Z1 FB0 S0> FB1 RS1 S1> ");
}

// "F1", "FB2", "RS2": whose end an op is (of a block's forward or backward the last op).
std::string end_name(const Schedule& s, OpId id) {
  const Op& op = s.ops[id.value];
  const std::string load = load_name(s, op), segment(s.name(op.label.segment));
  if (!load.empty()) return load;
  if (op.label.layer < 0) return segment;
  const bool last = op.label.phase == Phase::Forward ? segment == "mlp" : op.label.phase == Phase::Backward && segment == "attn";
  return last ? fmt::format("{}{}", op.label.phase == Phase::Forward ? "F" : "FB", op.label.layer) : "inside " + segment;
}

// Every host wait as "what is issued next < end that is waited for".
std::vector<std::string> host_waits(const Schedule& s) {
  std::vector<std::string> waits;
  const Program& p = s.programs[0];
  for (std::uint32_t i = 0; i + 1 < p.op_count; ++i) {
    const auto* wait = std::get_if<HostWait>(&s.ops[p.first_op.value + i].body);
    if (wait != nullptr) waits.push_back(load_name(s, s.ops[p.first_op.value + i + 1]) + " < " + end_name(s, wait->target));
  }
  return waits;
}

TEST(ZeroProgram, HostWaitsForTheRecordBefore) {  // BM-06; the embedding and the head stand where BMTrain's list has nothing
  Case c;
  c.layers = 4;
  EXPECT_EQ(host_waits(compiled(c)),
            (std::vector<std::string>{"AG1 < embed", "AG2 < F0", "AG3 < F1", "AG3 < F2", "AG2 < head", "AG1 < RS3", "AG0 < RS2"}));
  EXPECT_EQ(
      host_waits(compiled(c, {{"model.frozen", R"(["layers.2.*"])"}})),  // leaves nothing: its enter's record of the compute lane stands
      (std::vector<std::string>{"AG1 < embed", "AG2 < F0", "AG3 < F1", "AG3 < F2", "AG2 < head", "AG1 < RS3", "AG0 < FB2"}));
  c.zero = R"("level": 3, "ends": "whole", "form": "block")";  // no record at exit: one block further
  EXPECT_EQ(host_waits(compiled(c)),
            (std::vector<std::string>{"AG1 < embed", "AG2 < F0", "AG3 < F1", "AG3 < F2", "AG2 < head", "AG1 < FB3", "AG0 < FB2"}));
  c.zero = R"("level": 3, "ends": "whole", "prefetch": 2)";
  EXPECT_EQ(host_waits(compiled(c)),
            (std::vector<std::string>{"AG2 < embed", "AG3 < F0", "AG3 < F1", "AG2 < F2", "AG1 < head", "AG0 < RS3"}));
  c.zero = R"("level": 3, "ends": "whole", "prefetch": 0)";
  EXPECT_TRUE(host_waits(compiled(c)).empty());
}

struct Traffic {
  std::int64_t gathers = 0, gathered = 0, reduces = 0, reduced = 0;
};
Traffic block_traffic(const Schedule& s) {
  Traffic t;
  for (const Op& op : s.ops_of(s.programs[0])) {
    if (op.label.layer < 0) continue;
    if (const auto* gather = std::get_if<AllGather>(&op.body)) ++t.gathers, t.gathered += gather->bytes.value;
    if (const auto* reduce = std::get_if<ReduceScatter>(&op.body)) ++t.reduces, t.reduced += reduce->bytes.value;
  }
  return t;
}

TEST(ZeroTraffic, GathersAndReductionsOfAStep) {  // BM-08, invariant 4
  struct Row {
    const char* zero;
    std::int64_t gathers, reduces;  // per layer, with m = 3 micro-batches
  };
  const Row rows[] = {{R"("level": 3)", 6, 3},
                      {R"("level": 3, "form": "block")", 6, 3},
                      {R"("level": 3, "reshard": false)", 3, 3},
                      {R"("level": 3, "reduce": "step")", 6, 1},
                      {R"("level": 2)", 1, 3},
                      {R"("level": 2, "reduce": "step")", 1, 1},
                      {R"("level": 1)", 1, 1}};
  // h 60: norm 2 x 60, qkv 180 x 60 + 180, out 60 x 60 + 60; norm, up 240 x 60 + 240, down 60 x 240 + 60; at 256-element steps
  const std::int64_t total = 2 * 256 + 11008 + 256 + 3840 + 256 + 2 * 256 + 14592 + 256 + 14592 + 256;
  for (const Row& row : rows)
    for (const int dp : {1, 2, 3, 7}) {
      Case c;
      c.dp = dp;
      c.micro_batches = 3;
      c.zero = row.zero;
      const Traffic t = block_traffic(compiled(c));
      const std::int64_t gathered = (total + dp - 1) / dp * dp;
      EXPECT_EQ(t.gathers, row.gathers * c.layers) << row.zero;
      EXPECT_EQ(t.reduces, row.reduces * c.layers) << row.zero;
      EXPECT_EQ(t.gathered, t.gathers * gathered * 2);
      EXPECT_EQ(t.reduced, t.reduces * gathered * 4);
    }
}

TEST(ZeroTraffic, KeptGathersServeAllMicroBatchesOfGpipe) {  // B-F19
  Case c;
  c.micro_batches = 4;
  c.order = "gpipe";
  c.zero = R"("level": 3, "reshard": false, "reduce": "step")";
  const Traffic t = block_traffic(compiled(c));
  EXPECT_EQ(t.gathers, c.layers);
  EXPECT_EQ(t.reduces, c.layers);
}

std::int64_t resident(const Schedule& s, Category category) {
  std::int64_t sum = 0;
  for (const Buffer& buffer : s.programs[0].buffers)
    if (buffer.resident && buffer.category == category) sum += buffer.bytes.value;
  return sum;
}

TEST(ZeroMemory, ResidentStatesByLevel) {  // BM-13 with fp32 moments and master: states 12 P / W
  for (const int dp : {1, 2, 3, 8}) {
    Case c;
    c.dp = dp;
    const auto sums = [&](const char* zero) {
      c.zero = zero;
      const Schedule s = compiled(c);
      return std::array<std::int64_t, 4>{resident(s, Category::Param), resident(s, Category::Gradient),
                                         resident(s, Category::GradientShard), resident(s, Category::Optimizer)};
    };
    std::int64_t partitions = 0, w = dp;
    const auto cut = [&](std::int64_t elements) { partitions += (elements + w - 1) / w; };
    for (int layer = 0; layer < c.layers; ++layer) cut(46080);
    for (const std::int64_t elements : {97 * 60, 32 * 60, 60, 60}) cut(elements);  // table, positions, the head's norm
    EXPECT_EQ(sums(R"("level": 3)"), (std::array<std::int64_t, 4>{2 * partitions, 0, 4 * partitions, 12 * partitions}));
    EXPECT_EQ(sums(R"("level": 2)"), (std::array<std::int64_t, 4>{2 * w * partitions, 0, 4 * partitions, 12 * partitions}));
    EXPECT_EQ(sums(R"("level": 1)"), (std::array<std::int64_t, 4>{2 * w * partitions, 4 * w * partitions, 0, 12 * partitions}));
  }
}

const char* const kVariants[] = {R"("level": 3)",
                                 R"("level": 3, "form": "block")",
                                 R"("level": 3, "reshard": false)",
                                 R"("level": 3, "ends": "whole")",
                                 R"("level": 3, "prefetch": 0)",
                                 R"("level": 3, "form": "fsdp")",
                                 R"("level": 3, "form": "fsdp", "communicators": 1)",
                                 R"("level": 2, "form": "fsdp")",
                                 R"("level": 3, "reduce": "step", "prefetch": 3)",
                                 R"("level": 3, "shard_ranks": 2)",
                                 R"("level": 2)",
                                 R"("level": 2, "form": "block", "reduce": "step")",
                                 R"("level": 1)",
                                 R"("level": 1, "ends": "whole")"};

TEST(ZeroProgram, HasNoProblemInAnyCombination) {
  for (const char* zero : kVariants)
    for (const int dp : {1, 2, 4})
      for (const int pp : {1, 2})
        for (const int micro_batches : {1, 3})
          for (const char* order : {"1f1b", "gpipe"})
            for (const bool tied : {false, true}) {
              if (std::string(zero).find("shard_ranks") != std::string::npos && dp < 2) continue;
              const std::string recompute = micro_batches == 1 ? "none" : dp == 1 ? "full" : pp == 1 ? "sqrt" : kEveryTwo;
              Case c{zero, 5, dp, pp, micro_batches, recompute, order};
              c.tied = tied;
              const Schedule s = compiled(c);
              EXPECT_EQ(problems_of(s), "") << zero << " dp " << dp << " pp " << pp << " m " << micro_batches << " " << order << tied;
              EXPECT_EQ(simulated(s).outcome.status, Status::Ok);
            }
}

TEST(ZeroProgram, EveryDependencyThatGuardsABufferIsMissed) {
  for (const char* zero : {R"("level": 3)", R"("level": 3, "form": "block")", R"("level": 3, "reshard": false)", R"("level": 2)"}) {
    Case c;
    c.micro_batches = 2;
    c.zero = zero;
    const Schedule s = compiled(c);
    std::size_t found = 0, redundant = 0;
    for (std::uint32_t op = 0; op < s.ops.size(); ++op)
      for (std::uint32_t d = s.dep_offsets[op]; d < s.dep_offsets[op + 1]; ++d) {
        const bool race = problems_of(without_dependency(s, d)).find("RACE") != std::string::npos;
        EXPECT_TRUE(race || may_be_redundant(s, OpId(op))) << zero << ": " << print_op(s, OpId(op));
        race ? ++found : ++redundant;
      }
    EXPECT_GT(found, 20u) << zero;
    EXPECT_LT(redundant, 16u) << zero;
  }
}

// Section 8: a kernel per gradient group, one flag over all ranks, a read by the host; then every optimizer op is guarded.
TEST(OverflowCheck, GuardsEveryOptimizerOp) {
  for (const char* zero : {R"("level": 0)", R"("level": 1)", R"("level": 3)"})
    for (const int pp : {1, 2}) {
      Case c;
      c.zero = zero;
      c.pp = pp;
      const Schedule s = compiled(c, {{"optimizer.overflow_check", "true"}});
      EXPECT_EQ(problems_of(s), "") << zero;
      std::size_t steps = 0, checks = 0, flags = 0;
      for (const Op& op : s.ops) {
        const bool adam = s.name(op.label.segment) == "adam", check = s.name(op.label.segment) == "check";
        EXPECT_EQ(op.guard.valid(), adam);
        steps += adam ? 1 : 0;
        checks += check && std::holds_alternative<Compute>(op.body) ? 1 : 0;
        flags += check && std::holds_alternative<AllReduce>(op.body) ? 1 : 0;
      }
      EXPECT_EQ(checks, steps);
      EXPECT_EQ(flags, s.programs.size());
      SimulateOptions overflow;
      overflow.guard_value = false;
      Schedule timed = s;
      for (Op& op : timed.ops) op.given = Duration(s.name(op.label.segment) == "adam" ? 1000 : 0);
      EXPECT_EQ(ns(simulate(timed, StatedCosts(), nullptr, overflow).makespan), 0);
      EXPECT_GT(ns(simulate(timed, StatedCosts(), nullptr).makespan), 0);
    }
}

TEST(ZeroProgram, ASplitBackwardIsRefused) {
  Scenario scenario = parse_scenario(R"({"format": 1, "model": {"preset": "gpt2"}, "batch": {"micro_batches": 1, "sequence_length": 16},
 "zero": {"level": 3}, "schedule": {"order": "csv", "csv": "tests/data/split.csv"}, "machine": {"preset": "cpu"}})",
                                     SOURCE_DIR "/zero.json");
  EXPECT_THROW(compile(scenario), InputError);
}

TEST(ZeroText, AShardedBufferIsPrintedAndRead) {
  const Schedule s = compiled({});
  EXPECT_EQ(parse_schedule(print_schedule(s), "again.sched"), s);
}

std::string verdict_on(const std::string& buffer, const std::string& access) {
  return problems_of(
      parse_schedule("mesh dp 4\ncomm zero axes dp\nlayout l\n  tensor w fp32 10 at 0B\nprogram p ranks all\n  lane compute compute\n"
                     "  buffer s param " +
                         buffer + " layout l shard zero resident\n  0 compute U adam " + access + " lane compute\n",
                     "shard.sched"));
}

TEST(ZeroText, AShardHoldsItsShareAndNoTensors) {
  EXPECT_EQ(verdict_on("12B", "update s"), "") << "12 + 12 + 12 + 4 of 12";
  EXPECT_EQ(verdict_on("", "update s"), "") << "left out: ten elements over four ranks";
  EXPECT_NE(verdict_on("8B", "update s").find("32 bytes in all its shards, but its layout l ends at byte 40"), std::string::npos);
  EXPECT_NE(verdict_on("12B", "update s[tensor w]").find("it is a shard, which holds no whole tensors"), std::string::npos);
}

}  // namespace
}  // namespace steptwin