// Pipelines whose ranks all have a batch: specs/bmtrain.md 9, BM-09 to BM-12, invariants 2 to 5 of its section 14.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "schedule/base/error.h"
#include "schedule/batching.h"
#include "schedule/compile.h"
#include "schedule/ir/liveness.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::compiled_pipeline;
using test::name_of_op;
using test::on;
using test::program_text;
using test::simulated;
using Pipeline = test::BatchPipelineCase;

TEST(BatchPipeline, ProgramOfTwoStagesAndTwoMicroBatches) {  // BM-10; AG0, Z0, RS0: the block's ops on the load lane
  const Schedule s = compiled_pipeline(Pipeline{});
  EXPECT_EQ(program_text(s, 0), "embed AGhidden AG0 F0 S0> F1 S1> BC1 head head' AGgradient <R0 Z0 FB0 <R1 FB1 RS0 BC0 embed'");
  EXPECT_EQ(program_text(s, 1), "embed AGhidden <R0 AG1 F0 <R1 F1 BC1 head head' AGgradient Z1 FB0 S0> FB1 RS1 S1> BC0 embed'");
}

TEST(BatchPipeline, DescendingBackwardIsThatOfBmtrain1) {  // section 10: enter at the last micro-batch, reduce at micro-batch 0
  Pipeline p;
  p.more = {{"schedule.backward", "descending"}};
  const Schedule s = compiled_pipeline(p);
  EXPECT_EQ(program_text(s, 0), "embed AGhidden AG0 F0 S0> F1 S1> BC1 head head' AGgradient <R1 Z0 FB1 <R0 FB0 RS0 BC0 embed'");
  EXPECT_EQ(program_text(s, 1), "embed AGhidden <R0 AG1 F0 <R1 F1 BC1 head head' AGgradient Z1 FB1 S1> FB0 RS1 S0> BC0 embed'");
}

TEST(BatchPipeline, LayersEnterOnceABatchAndLeaveWithItsLastMicroBatch) {
  Pipeline p;
  p.layers = 4, p.batches = 2;
  const Schedule s = compiled_pipeline(p);
  EXPECT_EQ(program_text(s, 1),
            "embed AGhidden <R0 AG2 F0 AG3 F0 <R1 F1 F1 BC1 head head' AGgradient Z3 FB0 Z2 FB0 S0> FB1 RS3 FB1 RS2 S1> BC0 embed' "
            "embed AGhidden <R2 AG2 F2 AG3 F2 <R3 F3 F3 BC1 head head' AGgradient Z3 FB2 Z2 FB2 S2> FB3 RS3 FB3 RS2 S3> BC0 embed'");
}

// Section 4, rule 1, with receives and gathers on the compute lane: what is issued next < the end that the host waits for.
TEST(BatchPipeline, HostWaitsForTheRecordBefore) {
  Pipeline p;
  p.layers = 4, p.batches = 2;
  const Schedule s = compiled_pipeline(p);
  std::vector<std::string> waits;
  const Program& program = s.programs[1];
  for (std::uint32_t i = 0; i + 1 < program.op_count; ++i) {
    const auto* wait = std::get_if<HostWait>(&s.ops[program.first_op.value + i].body);
    if (wait == nullptr) continue;
    waits.push_back(name_of_op(s, s.ops[program.first_op.value + i + 1]) + " < " + name_of_op(s, s.ops[wait->target.value]));
  }
  EXPECT_EQ(waits,
            (std::vector<std::string>{"AG3 < <R0", "Z3 < F0", "Z2 < AGgradient", "AG2 < RS2", "AG3 < <R2", "Z3 < F2", "Z2 < AGgradient"}));
}

TEST(BatchPipeline, MetadataIsReadByTheHostBeforeEveryMessage) {  // B-F22, B-D07
  Pipeline p;
  p.pp = 3, p.layers = 3, p.pieces = 3;
  p.zero = R"("level": 3, "prefetch": 0)";
  const auto count = [&](const std::vector<Override>& more) {
    p.more = more;
    const Schedule s = compiled_pipeline(p);
    EXPECT_EQ(test::problems_of(s), "");
    std::map<std::string, int> of;
    for (const Program& program : s.programs)
      for (std::uint32_t i = 0; i < program.op_count; ++i) {
        const Op& op = s.ops[program.first_op.value + i];
        const bool message = is_point_to_point(op.body), small = message && bytes_of(op.body) == Bytes(50 * 4);
        if (message) ++of[small ? "small" : "large"];
        const auto* wait = std::get_if<HostWait>(&op.body);
        if (wait == nullptr) continue;
        ++of["waits"];
        EXPECT_TRUE(std::holds_alternative<Recv>(s.ops[wait->target.value].body));
        EXPECT_TRUE(std::holds_alternative<Recv>(s.ops[program.first_op.value + i + 1].body)) << "the data come next";
      }
    return of;
  };
  const int messages = 2 * 2 * 3;  // borders, directions, micro-batches
  EXPECT_EQ(count({}), (std::map<std::string, int>{{"large", 2 * messages}}));
  const std::map<std::string, int> announced{{"small", 2 * messages}, {"large", 2 * messages}, {"waits", messages}};
  EXPECT_EQ(count({{"schedule.metadata", "true"}}), announced);
  EXPECT_EQ(count({{"schedule.metadata", "true"}, {"schedule.p2p", "lanes"}}), announced);
}

TEST(BatchPipeline, StageSplit) {  // BM-09
  const auto split = [](std::int64_t layers, std::int32_t stages) {
    Scenario scenario;
    scenario.model.layers = layers;
    return stage_layers(scenario, stages);
  };
  using Layers = std::vector<std::int64_t>;
  EXPECT_EQ(split(10, 4), (Layers{3, 3, 2, 2}));
  EXPECT_EQ(split(7, 3), (Layers{3, 2, 2}));
  EXPECT_EQ(split(40, 8), Layers(8, 5));
  EXPECT_EQ(split(3, 4), (Layers{1, 1, 1, 0}));
  Pipeline p;
  p.pp = 4, p.layers = 10, p.pieces = 4;
  const Schedule s = compiled_pipeline(p);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    std::set<std::int32_t> layers;
    for (const Op& op : s.ops_of(s.programs[stage]))
      if (op.label.layer >= 0) layers.insert(op.label.layer);
    const std::vector<std::set<std::int32_t>> expected = {{0, 1, 2}, {3, 4, 5}, {6, 7}, {8, 9}};
    EXPECT_EQ(layers, expected[stage]);
  }
}

TEST(BatchPipeline, Topology) {  // BM-11
  Pipeline p;
  p.dp = 4;
  p.zero = R"("level": 3)";
  const Schedule s = compiled_pipeline(p);
  std::map<std::string, std::vector<std::vector<std::uint32_t>>> members;
  for (const Communicator& comm : s.communicators)
    for (const auto& instance : expand(s.mesh, comm).members) {
      auto& ranks = members[comm.name].emplace_back();
      for (const RankId rank : instance) ranks.push_back(rank.value);
    }
  using Groups = std::vector<std::vector<std::uint32_t>>;
  const Groups stages = {{0, 1, 2, 3}, {4, 5, 6, 7}}, pipelines = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  EXPECT_EQ(members.at("zero"), stages);
  EXPECT_EQ(members.at("zero.ends"), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(members.at("pp"), pipelines);
  EXPECT_EQ(members.at("pp.batch"), pipelines);
  EXPECT_EQ(members.size(), 4u);
}

struct Traffic {
  std::int64_t gathers = 0, reduces = 0, gathered_state = 0, broadcast_state = 0, sent = 0, received = 0;
  auto operator<=>(const Traffic&) const = default;
};

Traffic traffic_of(const Schedule& s, const Program& program) {
  Traffic t;
  for (const Op& op : s.ops_of(program)) {
    const std::int64_t bytes = bytes_of(op.body).value;
    if (std::holds_alternative<Send>(op.body)) t.sent += bytes;
    if (std::holds_alternative<Recv>(op.body)) t.received += bytes;
    if (std::holds_alternative<Broadcast>(op.body)) t.broadcast_state += bytes;
    if (on(s, op, "pp.batch") && std::holds_alternative<AllGather>(op.body)) t.gathered_state += bytes;
    if (on(s, op, "zero")) ++(std::holds_alternative<AllGather>(op.body) ? t.gathers : t.reduces);
  }
  return t;
}

// Section 9.4: one gather and one reduction of a layer a batch, whatever M; H gathered and H broadcast in each direction on every rank; H
// over every border in each direction.
TEST(BatchPipeline, TrafficOfAStep) {
  for (const int pp : {2, 3, 4})
    for (const int pieces : {1, 2, 3, 4, 6, 12})
      for (const int batches : {1, 3}) {
        Pipeline p;
        p.pp = pp, p.dp = 2, p.layers = pp + 1, p.pieces = pieces, p.batches = batches, p.samples = 12;
        const Schedule s = compiled_pipeline(p);
        const std::int64_t h = test::hidden_of_the_pipeline(p) * batches;
        for (int stage = 0; stage < pp; ++stage) {
          const std::int64_t layers = stage == 0 ? 2 : 1, neighbours = (stage > 0 ? 1 : 0) + (stage + 1 < pp ? 1 : 0);
          const Traffic expected{layers * batches, layers * batches, 2 * h, 2 * h, neighbours * h, neighbours * h};
          EXPECT_EQ(traffic_of(s, s.programs[static_cast<std::size_t>(stage)]), expected) << pp << " " << pieces << " stage " << stage;
        }
      }
}

TEST(BatchPipeline, HoldsEveryBlockOfTheStageGatheredAndItsGradients) {  // BM-12
  Pipeline p;
  p.layers = 7, p.dp = 2, p.pieces = 4;
  const Schedule s = compiled_pipeline(p);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const Program& program = s.programs[stage];
    std::int64_t gathered = 0, gradients = 0, both = 0;
    for (std::uint32_t op = 0; op < program.op_count; ++op) {
      const auto count = [&](Category category) {
        return test::alive(s, program, op, [&](const Buffer& b) { return b.category == category && test::of_block(s, b) ? 1 : 0; });
      };
      const std::int64_t parameters = count(Category::GatheredParam), whole = count(Category::Gradient);
      gathered = std::max(gathered, parameters), gradients = std::max(gradients, whole), both = std::max(both, parameters + whole);
    }
    const std::int64_t own = stage == 0 ? 4 : 3;
    EXPECT_EQ(gathered, own);
    EXPECT_EQ(gradients, own);
    EXPECT_EQ(both, 2 * own);
  }
}

// Section 9.4 with full recomputation: at the head len_s * H of saved inputs and the own batch; where the last stage puts its outputs
// together, the outputs and the whole, H each, beside them.
TEST(BatchPipeline, KeepsTheInputsOfItsLayersAndOneHiddenState) {
  Pipeline p;
  p.layers = 7, p.pieces = 4, p.samples = 6;
  const Schedule s = compiled_pipeline(p);
  const std::int64_t h = test::hidden_of_the_pipeline(p);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const Program& program = s.programs[stage];
    const std::int64_t own = stage == 0 ? 4 : 3;
    const auto hidden = [&](std::uint32_t op) {
      return test::alive(s, program, op, [&](const Buffer& b) {
        return b.layout.valid() && s.layouts[b.layout.value].name.starts_with("hidden") ? b.bytes.value : 0;
      });
    };
    std::int64_t largest_copy = 0;
    for (std::uint32_t i = 0; i < program.op_count; ++i) {
      const Op& op = s.ops[program.first_op.value + i];
      if (op.label.phase != Phase::Forward) continue;
      if (name_of_op(s, op) == "head") {
        EXPECT_EQ(hidden(i), own * h + h / 2);
      }
      if (std::holds_alternative<Copy>(op.body)) largest_copy = std::max(largest_copy, hidden(i));
    }
    EXPECT_EQ(largest_copy, own * h + (stage == 0 ? h + h / 2 : 2 * h));
  }
}

const char* const kVariants[] = {R"("level": 0)",
                                 R"("level": 1)",
                                 R"("level": 1, "ends": "whole")",
                                 R"("level": 2)",
                                 R"("level": 2, "form": "block")",
                                 R"("level": 3)",
                                 R"("level": 3, "form": "block")",
                                 R"("level": 3, "form": "fsdp")",
                                 R"("level": 3, "ends": "whole")",
                                 R"("level": 3, "reduce": "step", "prefetch": 0)",
                                 R"("level": 3, "shard_ranks": 1)"};

TEST(BatchPipeline, HasNoProblemInAnyCombination) {
  std::size_t round = 0;
  for (const char* zero : kVariants)
    for (const auto& [pp, dp] : {std::pair{2, 1}, {2, 2}, {3, 1}, {4, 2}})
      for (const char* p2p : {"compute", "compute_recv", "lanes", "one_lane", "grouped"})
        for (const int batches : {1, 2}) {
          Pipeline p{pp, dp, pp + 1, pp == 3 ? 3 : 4, batches, 2};
          p.zero = zero;
          p.recompute = round % 3 == 0 ? "none" : round % 3 == 1 ? "full" : test::kEveryTwo;
          p.more = {{"schedule.p2p", std::string("\"") + p2p + "\""},
                    {"model.tied", round % 2 == 0 ? "true" : "false"},
                    {"optimizer.overflow_check", round % 5 == 0 ? "true" : "false"},
                    {"schedule.backward", round % 4 < 2 ? "ascending" : "descending"},
                    {"model.dropout", round % 3 == 2 ? "0.1" : "0"},
                    {"recompute.hidden_states", round % 4 == 1 ? "true" : "false"},
                    {"schedule.metadata", round % 7 == 0 && p2p != std::string("grouped") ? "true" : "false"}};
          if (round % 5 == 2) p.more.push_back({"optimizer.clip", "1"});
          ++round;
          const Schedule s = compiled_pipeline(p);
          std::string text;
          for (const Diagnostic& d : verify(s, {Transport::Nccl})) text += format_diagnostic(d) + "\n";
          EXPECT_EQ(text, "") << zero << " pp " << pp << " dp " << dp << " " << p2p << " batches " << batches;
          EXPECT_EQ(simulated(s).outcome.status, Status::Ok);
          EXPECT_EQ(parse_schedule(print_schedule(s), "again.sched"), s);
        }
}

TEST(BatchPipeline, EveryDependencyThatGuardsABufferIsMissed) {
  for (const char* p2p : {"compute", "lanes"}) {
    Pipeline p;
    p.batches = 2, p.dp = 2;
    p.zero = R"("level": 3)";
    p.more = {{"schedule.p2p", p2p}};
    const Schedule s = compiled_pipeline(p);
    std::size_t found = 0, redundant = 0;
    for (std::uint32_t op = 0; op < s.ops.size(); ++op)
      for (std::uint32_t d = s.dep_offsets[op]; d < s.dep_offsets[op + 1]; ++d) {
        const bool race = test::problems_of(test::without_dependency(s, d)).find("RACE") != std::string::npos;
        EXPECT_TRUE(race || test::may_be_redundant(s, OpId(op))) << p2p << ": " << print_op(s, OpId(op));
        race ? ++found : ++redundant;
      }
    EXPECT_GT(found, 20u) << p2p;
    EXPECT_LT(redundant, 24u) << p2p;
  }
}

// Ends of a batch's forward and backward over the layers, with messages of x on the compute lane. A first or last stage is busy f + x per
// micro-batch, one between them f + 2x:
//   two stages    (M + 1)(f + x) - x
//   p >= 3        (p - 1) f + (p - 3) x + M (f + 2x)
std::int64_t one_way(std::int64_t p, std::int64_t m, std::int64_t f, std::int64_t x) {
  return p == 2 ? (m + 1) * (f + x) - x : (p - 1) * f + (p - 3) * x + m * (f + 2 * x);
}

TEST(BatchPipeline, BlockingMessagesCostEveryStageTheirTime) {
  for (const int pp : {2, 3, 4, 6})
    for (const int pieces : {1, 2, 4, 12})
      for (const int batches : {1, 2}) {
        Pipeline p{pp, 1, pp, pieces, batches, 12};
        p.recompute = "none";
        Schedule s = compiled_pipeline(p);
        for (Op& op : s.ops) {
          op.given = Duration(0);
          if (is_point_to_point(op.body)) op.given = Duration(7);
          if (op.label.layer < 0 || !std::holds_alternative<Compute>(op.body)) continue;
          if (op.label.phase == Phase::Forward) op.given = Duration(50);  // of half a layer
          if (op.label.phase == Phase::Backward) op.given = Duration(110);
        }
        EXPECT_EQ(ns(simulated(s).makespan), batches * (one_way(pp, pieces, 100, 7) + one_way(pp, pieces, 220, 7)))
            << pp << " stages, " << pieces << " micro-batches";
      }
}

TEST(BatchPipeline, CompileRefusesWhatTheReaderWould) {
  const auto scenario = [](const std::vector<Override>& overrides) {
    std::vector<Override> all = {{"batch.micro_batch_size", "2"}};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return parse_scenario(
        R"({"format": 1, "model": {"preset": "gpt2"}, "mesh": {"pp": 2}, "batch": {"micro_batches": 1, "sequence_length": 16},
 "pipeline": {"form": "bmtrain"}, "machine": {"preset": "cpu"}})",
        "pipe.json", all);
  };
  Scenario good = scenario({});
  EXPECT_EQ(good.pipeline.micro_batches, 2) << "the default: as many as stages";
  EXPECT_EQ(layer_batch(good).micro_batch, 2);
  EXPECT_EQ(batch_ranks(good), 2);
  EXPECT_NO_THROW(compile(good));
  Scenario odd = good;
  odd.pipeline.micro_batches = 3;
  EXPECT_THROW(compile(odd), InputError);
  Scenario order = good;
  order.order = "1f1b";
  EXPECT_THROW(compile(order), InputError);
}

}  // namespace
}  // namespace steptwin
