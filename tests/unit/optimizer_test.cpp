// The optimizer's programs: specs/bmtrain.md 8.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/ir/liveness.h"
#include "schedule/ir/text.h"
#include "schedule/model/flat_storage.h"
#include "sim/cost/cost_models.h"
#include "sim/simulate.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::compiled;
using test::problems_of;
using Case = test::ZeroCase;

constexpr const char* kSharded = R"("level": 3)";

// Every op from the first of phase U on, as "down L1", "adam L1", "up L1", "wait", "gather L1".
std::string update_program(const Schedule& s, std::uint32_t program = 0) {
  std::string text;
  for (const Op& op : s.ops_of(s.programs[program])) {
    const bool update = op.label.phase == Phase::Update;
    if (text.empty() && !update) continue;
    std::string what(s.name(op.label.segment));
    if (std::holds_alternative<HostWait>(op.body)) what = "wait";
    if (std::holds_alternative<AllGather>(op.body)) what = "gather";
    const bool layer = op.label.layer >= 0;
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", what, layer ? fmt::format(" L{}", op.label.layer) : "");
  }
  return text;
}

TEST(Offload, AllGradientsGoDownThenGroupByGroupTheStepGoesUp) {
  Case c;
  c.zero = R"("level": 3, "ends": "whole")";
  c.layers = 2;
  const Schedule s = compiled(c, {{"optimizer.offload", "true"}, {"mesh.dp", "2"}});
  EXPECT_EQ(problems_of(s), "");
  // The embedding and the head are whole: their gradients are all-reduced on the lane dp before.
  const std::string text = update_program(s);
  EXPECT_EQ(text.substr(text.find("down")), "down, down L1, down L0, down, adam, up, adam L1, up L1, adam L0, up L0, adam, up, wait");
}

TEST(Offload, CopiesStandOnTheComputeLaneAndStepsWaitForTheirOwnCopyAlone) {
  Case c;
  c.zero = kSharded;
  const Schedule s = compiled(c, {{"optimizer.offload", "true"}});
  const Program& p = s.programs[0];
  std::size_t steps = 0;
  for (std::uint32_t i = 0; i < p.op_count; ++i) {
    const OpId id(p.first_op.value + i);
    const Op& op = s.ops[id.value];
    if (std::holds_alternative<Copy>(op.body)) {
      EXPECT_EQ(p.lanes[op.lane.value].name, "compute") << print_op(s, id);
    }
    if (s.name(op.label.segment) != "adam") continue;
    ++steps;
    EXPECT_EQ(p.lanes[op.lane.value].engine, Engine::Host);
    ASSERT_EQ(s.deps_of(id).size(), 1u);
    const Op& copy = s.ops[s.deps_of(id)[0].value];
    EXPECT_EQ(s.name(copy.label.segment), "down");
    EXPECT_EQ(s.accesses_of(s.deps_of(id)[0])[1].buffer, s.accesses_of(id)[0].buffer) << "its own gradient";
  }
  EXPECT_GT(steps, 3u);
}

// The first Adam starts when its copy has ended, not when all have; what goes up waits for all that comes down.
TEST(Offload, LaterCopiesOverlapEarlierStepsAndNothingOverlapsTheBackward) {
  Case c;
  c.zero = kSharded;
  c.layers = 4;
  const Schedule s = compiled(c, {{"optimizer.offload", "true"}});
  const Machine machine = load_machine(machine_preset_path("v100_node"));
  const Trace trace = simulate(s, *analytic_costs(machine), &machine);
  ASSERT_EQ(trace.outcome.status, Status::Ok);
  SimTime last_backward{}, first_down = SimTime::max(), last_down{}, first_adam = SimTime::max(), first_up = SimTime::max();
  for (const Span& span : trace.spans) {
    if (span.rank.value != trace.stand_in[0].value) continue;
    const Op& op = s.ops[span.op.value];
    const auto what = s.name(op.label.segment);
    if (op.label.phase == Phase::Backward) last_backward = std::max(last_backward, span.end);
    if (what == "down") first_down = std::min(first_down, span.start), last_down = std::max(last_down, span.end);
    if (what == "adam") first_adam = std::min(first_adam, span.start);
    if (what == "up") first_up = std::min(first_up, span.start);
  }
  EXPECT_GE(first_down, last_backward);
  EXPECT_LT(first_adam, last_down);
  EXPECT_GE(first_up, last_down);
}

// Section 8: 16 bytes an element on the host (16-bit: 12 pageable, 4 pinned; fp32: 8 and 8), nothing but parameter and gradient on the
// device.
TEST(Offload, HostBytesPerElement) {
  for (const auto& [compute, gradient, pageable, pinned] :
       {std::tuple{"bf16", "bf16", 12, 4}, {"fp16", "fp16", 12, 4}, {"bf16", "fp32", 12, 6}, {"fp32", "fp32", 8, 8}}) {
    Case c;
    c.zero = kSharded;
    c.compute = compute;
    c.gradient = gradient;
    const Schedule on_device = compiled(c), s = compiled(c, {{"optimizer.offload", "true"}});
    EXPECT_EQ(problems_of(s), "");
    const Program &p = s.programs[0], &ordinary = on_device.programs[0];
    std::int64_t elements = 0, states = 0;  // of this rank's shards
    for (const Buffer& b : ordinary.buffers) {
      if (b.category == Category::Optimizer && on_device.name(b.name).ends_with(".m")) elements += b.bytes.value / 4;
      if (b.category == Category::Optimizer) states += b.bytes.value;
    }
    EXPECT_GT(elements, 0);
    EXPECT_EQ(resident_bytes(p, Space::Pageable).value, pageable * elements);
    EXPECT_EQ(resident_bytes(p, Space::Pinned).value, pinned * elements);
    EXPECT_EQ(states, pageable * elements) << "the states that left the device";
    EXPECT_EQ(resident_bytes(p, Space::Device).value, resident_bytes(ordinary, Space::Device).value - states);
  }
}

// Adam's bytes over what a rank's cores stream: 28 a bf16 element (gradient 4, m and v read and written 16, master 8, parameter 2 = 30 with
// an fp32 gradient) at 20 GB/s unless the machine says otherwise.
TEST(Offload, AStepIsBoundByMainMemory) {
  Case c;
  c.zero = kSharded;
  const Schedule s = compiled(c, {{"optimizer.offload", "true"}});
  Machine machine = load_machine(machine_preset_path("v100_node"));
  const auto adam = std::find_if(s.ops.begin(), s.ops.end(), [&](const Op& op) { return s.name(op.label.segment) == "adam"; });
  ASSERT_NE(adam, s.ops.end());
  const auto accesses = s.accesses_of(OpId(static_cast<std::uint32_t>(adam - s.ops.begin())));
  const double elements = static_cast<double>(s.programs[0].buffers[accesses[0].buffer.value].bytes.value) / 4;
  EXPECT_EQ(analytic_costs(machine)->compute(s, s.programs[0], *adam).duration, ceil_ns(30 * elements / 20e9));
  machine.host.memory_bandwidth = BytesPerSecond{100e9};
  EXPECT_EQ(analytic_costs(machine)->compute(s, s.programs[0], *adam).duration, ceil_ns(30 * elements / 100e9));
}

TEST(Offload, AnOverflowHoldsEverythingBack) {
  Case c;
  c.zero = kSharded;
  const Schedule s = compiled(c, {{"optimizer.offload", "true"}, {"optimizer.overflow_check", "true"}});
  EXPECT_EQ(problems_of(s), "");
  for (const Op& op : s.ops) EXPECT_TRUE(op.label.phase != Phase::Update || op.guard.valid());
}

// Only what stands between the last reduction and the first step of Adam.
std::string scale_program(const Schedule& s, std::uint32_t program = 0) {
  std::string text;
  std::string last;
  int times = 0;
  const auto flush = [&] {
    text += last.empty() ? "" : fmt::format("{}{}{}", text.empty() ? "" : ", ", last, times > 1 ? fmt::format(" x{}", times) : "");
  };
  for (const Op& op : s.ops_of(s.programs[program])) {
    std::string what(s.name(op.label.segment));
    const bool reduce = std::holds_alternative<AllReduce>(op.body);
    if (std::holds_alternative<HostWait>(op.body)) what = "wait";
    const bool own =
        what == "wait" || what == "check" || what == "decide" || what == "norm" || what == "factor" || what == "rescale" || what == "scale";
    if (what == "adam") break;
    if (!own || op.label.layer >= 0) continue;
    what = reduce ? what + " reduced" : what;
    if (what == last) {
      ++times;
      continue;
    }
    flush();
    last = what, times = 1;
  }
  flush();
  return text;
}

Case whole_replicas() {  // no throttle, so that every wait is the optimizer's
  Case c;
  c.zero = R"("level": 0)";
  c.recompute = "none";
  c.layers = 2;
  return c;
}

TEST(Clip, ANormAGradientOneReductionAHostReadAScaling) {
  Case c = whole_replicas();
  c.pp = 2;
  const Schedule s = compiled(c, {{"optimizer.clip", "1.5"}});
  EXPECT_EQ(problems_of(s), "");
  EXPECT_EQ(s.constant("clip"), 1.5);
  // The embedding, and a layer's two halves; the head's buffer also holds the copy of the table, which counts with the embedding.
  EXPECT_EQ(scale_program(s, 0), "norm x3, norm reduced, wait, factor, scale x3");
  EXPECT_EQ(scale_program(s, 1), "norm x4, norm reduced, wait, factor, scale x3");
}

// The embedding, two layers of two halves, the head.
TEST(LossScale, IsTakenOutBehindTheCheckAndMovesOnce) {
  const Schedule s = compiled(whole_replicas(), {{"optimizer.loss_scale", "65536"}});
  EXPECT_EQ(problems_of(s), "");
  EXPECT_EQ(scale_program(s), "check x6, check reduced, decide, wait, factor, rescale, scale x6");
  const Schedule both = compiled(whole_replicas(), {{"optimizer.loss_scale", "65536"}, {"optimizer.clip", "1"}});
  EXPECT_EQ(problems_of(both), "");
  EXPECT_EQ(scale_program(both), "check x6, check reduced, decide, wait, norm x6, wait, factor, rescale, scale x6");
  for (const Op& op : both.ops) {
    const auto what = both.name(op.label.segment);
    if (what == "norm" || what == "factor" || what == "scale" || what == "adam") {
      EXPECT_TRUE(op.guard.valid()) << what;
    }
    if (what == "rescale") {
      EXPECT_FALSE(op.guard.valid()) << "it lowers the scale on overflow";
    }
  }
}

const AllReduce* norm_reduction(const Schedule& s) {
  for (const Op& op : s.ops)
    if (const auto* reduce = std::get_if<AllReduce>(&op.body); reduce != nullptr && s.name(op.label.segment) == "norm") return reduce;
  return nullptr;
}

// fp32, over the ranks that hold distinct pieces: stages alone, or stages and one shard group.
TEST(Clip, TheReductionSpansTheRanksThatHoldDistinctPieces) {
  const auto members = [](const Case& c, std::vector<Override> more = {}) -> std::size_t {
    more.push_back({"optimizer.clip", "1"});
    const Schedule s = compiled(c, more);
    EXPECT_EQ(problems_of(s), "");
    const AllReduce* reduce = norm_reduction(s);
    if (reduce == nullptr) return 1;
    EXPECT_EQ(reduce->dtype, DType::Fp32);
    EXPECT_EQ(reduce->bytes, Bytes(s.constant("norm_copies") ? 8 : 4));
    const CommInstances comm = expand(s.mesh, s.communicators[reduce->comm.value]);
    for (const auto& instance : comm.members) EXPECT_EQ(instance.size(), comm.members[0].size());
    return comm.members[0].size();
  };
  Case c = whole_replicas();
  c.dp = 4;
  EXPECT_EQ(members(c), 1u) << "every replica has the whole";
  c.pp = 2;
  EXPECT_EQ(members(c), 2u);
  c.zero = R"("level": 3)";
  EXPECT_EQ(members(c), 8u);
  c.zero = R"("level": 2, "ends": "whole")";
  EXPECT_EQ(members(c), 8u);
  c.zero = R"("level": 3, "shard_ranks": 2)";
  EXPECT_EQ(members(c), 4u);
  EXPECT_EQ(members(c, {{"mesh.order", R"(["dp", "pp"])"}}), 4u);
  // The two stages of one shard group, in either order of the axes.
  for (const auto& [order, first] :
       {std::pair{R"(["pp", "dp"])", std::vector<std::uint32_t>{0, 1, 4, 5}}, {R"(["dp", "pp"])", {0, 1, 2, 3}}}) {
    const Schedule s = compiled(c, {{"optimizer.clip", "1"}, {"mesh.order", order}});
    const CommInstances comm = expand(s.mesh, s.communicators[norm_reduction(s)->comm.value]);
    std::vector<std::uint32_t> ranks;
    for (const RankId rank : comm.members[0]) ranks.push_back(rank.value);
    EXPECT_EQ(ranks, first) << order;
  }
}

// Form bmtrain: every stage has embedding and head, whole, as a part of a shard over all ranks, or in shard groups of its own.
TEST(Clip, DividesTheSquaresOfEndsThatSeveralRanksHold) {
  const auto copies = [](const char* zero, const char* order) {
    Case c;
    c.zero = zero;
    c.pp = 2, c.dp = 4, c.order = "gpipe";
    const Schedule s = compiled(
        c, {{"pipeline", R"({"form": "bmtrain", "micro_batches": 2})"}, {"optimizer.clip", "1"}, {"mesh.order", order}});
    EXPECT_EQ(problems_of(s), "") << zero;
    return s.constant("norm_copies").value_or(1);
  };
  for (const char* order : {R"(["pp", "dp"])", R"(["dp", "pp"])"}) {
    EXPECT_EQ(copies(R"("level": 0)", order), 2);
    EXPECT_EQ(copies(R"("level": 3)", order), 1);
    EXPECT_EQ(copies(R"("level": 3, "shard_ranks": 2)", order), 2);
    EXPECT_EQ(copies(R"("level": 1, "shard_ranks": 4)", order), 2);
    EXPECT_EQ(copies(R"("level": 2, "ends": "whole")", order), 8);
    EXPECT_EQ(copies(R"("level": 2, "ends": "whole", "shard_ranks": 2)", order), 4);
  }
}

// One pass of reading and one of reading and writing over the gradients of a rank, at the device's memory bandwidth.
TEST(Clip, CostsTwoPassesOverTheGradients) {
  const Schedule s = compiled(whole_replicas(), {{"optimizer.clip", "1"}});
  std::int64_t read = 0, scaled = 0, gradients = 0;
  for (const Op& op : s.ops) {
    const auto what = s.name(op.label.segment);
    const auto* compute = std::get_if<Compute>(&op.body);
    if (compute == nullptr) continue;
    const std::int64_t bytes = s.works[s.parts_of(*compute)[0].work.value].bytes().value;
    read += what == "norm" ? bytes : 0, scaled += what == "scale" ? bytes : 0;
  }
  for (const Buffer& b : s.programs[0].buffers) gradients += b.category == Category::Gradient ? b.bytes.value : 0;
  EXPECT_EQ(read, gradients);
  EXPECT_EQ(scaled, 2 * gradients);
}

std::int64_t bytes_of_all(const Schedule& s, bool (*is)(const OpBody&)) {
  std::int64_t sum = 0;
  for (const Op& op : s.ops) sum += is(op.body) ? bytes_of(op.body).value : 0;
  return sum;
}

bool reduces(const OpBody& body) { return std::holds_alternative<ReduceScatter>(body) || std::holds_alternative<AllReduce>(body); }
bool copies(const OpBody& body) { return std::holds_alternative<Copy>(body); }

// Reductions move half the bytes in bf16 and twice as many in fp32; the casts of a gradient and of its sum (or shard) stand around them.
TEST(ReduceType, BytesFollowTheTypeAndCastsSurroundTheReduction) {
  for (const char* zero : {R"("level": 0)", R"("level": 1)", R"("level": 2)", R"("level": 3)", R"("level": 3, "form": "fsdp")",
                           R"("level": 3, "shard_ranks": 2)", R"("level": 2, "ends": "whole")"}) {
    Case c;
    c.zero = zero;
    c.dp = 4;
    const Schedule same = compiled(c), narrow = compiled(c, {{"precision.reduce", "bf16"}});
    c.gradient = "bf16";
    const Schedule wide = compiled(c, {{"precision.reduce", "fp32"}});
    for (const Schedule* s : {&narrow, &wide}) EXPECT_EQ(problems_of(*s), "") << zero;
    EXPECT_EQ(bytes_of_all(same, copies), 0);
    EXPECT_EQ(bytes_of_all(narrow, reduces) * 2, bytes_of_all(same, reduces)) << zero;
    EXPECT_EQ(bytes_of_all(wide, reduces), bytes_of_all(same, reduces)) << zero << ": fp32, although kept in bf16";
    EXPECT_GT(bytes_of_all(narrow, copies), 0);
    const Program& p = narrow.programs[0];
    EXPECT_EQ(resident_bytes(p, Space::Device), resident_bytes(same.programs[0], Space::Device)) << "what is kept is kept in its type";
  }
}

TEST(ReduceType, ABlockIsCastReducedAndItsShardCastBackOnOneLane) {
  Case c;
  const Schedule s = compiled(c, {{"precision.reduce", "bf16"}});
  const Program& p = s.programs[0];
  std::string text;
  for (const Op& op : s.ops_of(p)) {
    if (op.label.layer != 1 || !op.lane.valid() || p.lanes[op.lane.value].name != "load" || op.label.phase != Phase::Backward) continue;
    if (const auto* copy = std::get_if<Copy>(&op.body)) text += fmt::format("{}>{} ", name_of(copy->from), name_of(copy->to));
    if (const auto* reduce = std::get_if<ReduceScatter>(&op.body)) text += fmt::format("RS {} ", name_of(reduce->dtype));
  }
  EXPECT_EQ(text, "fp32>bf16 RS bf16 bf16>fp32 ");
}

}  // namespace
}  // namespace steptwin
