// Cost models of sim/cost against the formulas of specs/cost_models.md 2, 3, 7 and the promises of given_cost.h.
#include <gtest/gtest.h>

#include <map>

#include "schedule/base/error.h"
#include "schedule/ir/builder.h"
#include "schedule/ir/text.h"
#include "sim/cost/alpha_beta.h"
#include "sim/cost/copy_path.h"
#include "sim/cost/cost_models.h"
#include "sim/cost/roofline.h"
#include "sim/pricing.h"

namespace steptwin {
namespace {

using namespace literals;

// Round figures: 100 TF matrix, 10 TF vector, 1 TB/s memory, 100 GB/s links inside a node, 10 GB/s between, 8 devices a node.
Machine test_machine() {
  Machine machine;
  machine.device.memory_bandwidth = {1e12};
  machine.device.matrix_peak = {{DType::Bf16, {1e14}}};
  machine.device.vector_peak = {1e13};
  machine.intra_node = {{1e11}, 1, Duration(1000)};
  machine.inter_node = {{2e10}, 0.5, Duration(5000)};
  machine.copy_up = {{5e10}, 1, Duration(0)};
  machine.copy_down = {{4e10}, 1, Duration(0)};
  machine.host.kernel_launch = Duration(4000);
  machine.host.transfer_launch = Duration(7000);
  machine.disk = Disk{{5e9}, {2e9}, Bytes(0)};
  return machine;
}

Kernel kernel(Kernel::Kind kind, DType type, std::int64_t flops, std::int64_t bytes) {
  Kernel k;
  k.kind = kind;
  k.dtype = type;
  k.flops = Flops(flops);
  k.bytes = Bytes(bytes);
  return k;
}

double time_of(const Device& device, Kernel::Kind kind, DType type, std::int64_t flops, std::int64_t bytes) {
  return kernel_seconds(device, kernel(kind, type, flops, bytes));
}

TEST(Roofline, TheSlowerOfFlopsAndBytes) {
  const Device device = test_machine().device;
  EXPECT_DOUBLE_EQ(time_of(device, Kernel::Kind::MatMul, DType::Bf16, 100'000'000'000, 1000), 1e-3);
  EXPECT_DOUBLE_EQ(time_of(device, Kernel::Kind::MatMul, DType::Bf16, 1000, 1'000'000'000), 1e-3);
  EXPECT_DOUBLE_EQ(time_of(device, Kernel::Kind::Stream, DType::Bf16, 10'000'000'000, 0), 1e-3);  // vector peak
  EXPECT_DOUBLE_EQ(time_of(device, Kernel::Kind::MatMul, DType::Fp32, 10'000'000'000, 0), 1e-3);  // no fp32 matrix peak
  EXPECT_EQ(time_of(device, Kernel::Kind::Stream, DType::Bf16, 0, 0), 0);
}

TEST(Roofline, EfficiencyCurvesBySize) {
  Device device = test_machine().device;
  device.matrix_efficiency.steps = {{0, 0.1}, {1e9, 0.5}};
  device.memory_efficiency.steps = {{0, 0.25}, {1e6, 0.8}};
  EXPECT_DOUBLE_EQ(time_of(device, Kernel::Kind::MatMul, DType::Bf16, 1'000'000'000, 0), 1e9 / (1e14 * 0.5));
  EXPECT_DOUBLE_EQ(time_of(device, Kernel::Kind::MatMul, DType::Bf16, 999'999'999, 0), 999999999 / (1e14 * 0.1));
  EXPECT_DOUBLE_EQ(time_of(device, Kernel::Kind::Stream, DType::Bf16, 0, 1'000'000), 1e6 / (1e12 * 0.8));
  EXPECT_DOUBLE_EQ(time_of(device, Kernel::Kind::Attention, DType::Bf16, 1'000'000'000, 0), 1e9 / (1e14 * 0.5));  // falls back
  device.attention_efficiency.steps = {{0, 0.4}};
  EXPECT_DOUBLE_EQ(time_of(device, Kernel::Kind::Attention, DType::Bf16, 1'000'000'000, 0), 1e9 / (1e14 * 0.4));
}

double communication(const OpBody& body, CommShape shape) { return communication_seconds(test_machine(), body, shape); }
constexpr Bytes kGB{1'000'000'000};
constexpr CommShape kNode{8, 1, 8}, kTwoNodes{16, 2, 8}, kSparse{4, 4, 1}, kWide{16, 8, 2};

TEST(AlphaBeta, RingInsideANode) {
  const double pass = 7e-6 + 7.0 / 8 * 1e9 / 1e11;
  EXPECT_DOUBLE_EQ(communication(AllGather{{}, DType::Bf16, kGB}, kNode), pass);
  EXPECT_DOUBLE_EQ(communication(ReduceScatter{{}, DType::Bf16, kGB}, kNode), pass);
  EXPECT_DOUBLE_EQ(communication(AllReduce{{}, DType::Bf16, kGB}, kNode), 2 * pass);
}

// NIC: 2e10 * 0.5 = 10 GB/s. 8 of them 80 < 100 inside; one member a node: 10; two: 20.
TEST(AlphaBeta, RingOverNodes) {
  EXPECT_DOUBLE_EQ(communication(AllGather{{}, DType::Bf16, kGB}, kTwoNodes), 1 * 5e-6 + 14 * 1e-6 + 15.0 / 16 * 1e9 / 8e10);
  EXPECT_DOUBLE_EQ(communication(AllGather{{}, DType::Bf16, kGB}, kSparse), 3 * 5e-6 + 3.0 / 4 * 1e9 / 1e10);
  EXPECT_DOUBLE_EQ(communication(AllReduce{{}, DType::Bf16, kGB}, kWide), 2 * (7 * 5e-6 + 8 * 1e-6 + 15.0 / 16 * 1e9 / 2e10));
}

TEST(AlphaBeta, TheRingInsideTheNodeBoundsManyNics) {
  Machine machine = test_machine();
  machine.inter_node.bandwidth = {1e12};
  EXPECT_DOUBLE_EQ(communication_seconds(machine, AllGather{{}, DType::Bf16, kGB}, kTwoNodes), 19e-6 + 15.0 / 16 * 1e9 / 1e11);
}

TEST(AlphaBeta, Messages) {
  EXPECT_DOUBLE_EQ(communication(Send{{}, DType::Bf16, kGB, {}}, {2, 1, 2}), 1e-6 + 1e-2);
  EXPECT_DOUBLE_EQ(communication(Recv{{}, DType::Bf16, kGB, {}}, {2, 2, 1}), 5e-6 + 1e-1);
}

TEST(AlphaBeta, OneMemberCostsNothing) {
  const OpBody gather = AllGather{{}, DType::Bf16, kGB}, send = Send{{}, DType::Bf16, kGB, {}};
  for (const OpBody& body : {gather, send, OpBody(AllReduce{}), OpBody(AllToAll{})}) EXPECT_EQ(communication(body, {1, 1, 1}), 0);
}

// (n-2+C)(alpha + S/(CB)) with n = 8: the chosen C is no worse than its neighbours, and C = 1 for a tiny message.
TEST(AlphaBeta, BroadcastPicksTheBestPieces) {
  const double time = communication(Broadcast{{}, DType::Bf16, kGB, {}}, kNode);
  const auto chain = [](double pieces) { return (6 + pieces) * (1e-6 + 1e-2 / pieces); };
  EXPECT_DOUBLE_EQ(time, chain(244));  // floor(sqrt(6 * 1e-2 / 1e-6)) = 244
  EXPECT_LT(time, chain(200));
  EXPECT_LT(time, chain(300));
  EXPECT_DOUBLE_EQ(communication(Broadcast{{}, DType::Bf16, Bytes(0), {}}, kNode), 7e-6);
  EXPECT_DOUBLE_EQ(communication(Broadcast{{}, DType::Bf16, kGB, {}}, {2, 1, 2}), 1e-6 + 1e-2);
}

TEST(AlphaBeta, AllToAllPairwise) {
  EXPECT_DOUBLE_EQ(communication(AllToAll{{}, DType::Bf16, kGB}, kNode), 7 * (1e-6 + 1e9 / 8 / 1e11));
  EXPECT_DOUBLE_EQ(communication(AllToAll{{}, DType::Bf16, kGB}, kTwoNodes), 7 * (1e-6 + 1e9 / 16 / 1e11) + 8 * (5e-6 + 1e9 / 16 / 1e10));
}

TEST(AlphaBeta, AMissingRateIsAClearError) {
  Machine machine = test_machine();
  machine.inter_node.bandwidth = {0};
  try {
    communication_seconds(machine, AllReduce{{}, DType::Bf16, kGB}, kTwoNodes);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.problems()[0].code, "NO-RATE");
  }
}

TEST(CopyPath, EveryPairOfSpaces) {
  const Machine machine = test_machine();
  const auto time = [&](Space from, Space to, std::int64_t read, std::int64_t written) {
    return copy_seconds(machine, {from, to, Bytes(read), Bytes(written)});
  };
  const std::int64_t n = 1'000'000'000;
  EXPECT_DOUBLE_EQ(time(Space::Pinned, Space::Device, n, n), 1e9 / 5e10);
  EXPECT_DOUBLE_EQ(time(Space::Pinned, Space::Device, n, 2 * n), 1e9 / 5e10);    // cast on the device
  EXPECT_DOUBLE_EQ(time(Space::Device, Space::Pinned, 2 * n, n), 1e9 / 4e10);
  EXPECT_DOUBLE_EQ(time(Space::Device, Space::Pageable, n, n), 2 * 1e9 / 4e10);  // staged
  EXPECT_DOUBLE_EQ(time(Space::Device, Space::Device, n, n), 2e9 / 1e12);
  EXPECT_DOUBLE_EQ(time(Space::Pinned, Space::Pageable, n, n), 2e9 / 20e9);
  EXPECT_DOUBLE_EQ(time(Space::Storage, Space::Pinned, n, n), 1e9 / 5e9);
  EXPECT_DOUBLE_EQ(time(Space::Device, Space::Storage, n, n), 1e9 / 2e9);        // the disk is the slower half
}

TEST(CopyPath, ReadsSpacesAndCastFromTheOp) {
  ScheduleBuilder builder(Mesh{{{"pp", 1}}});
  builder.begin_program("pp0", {RankId(0)});
  const LaneId up = builder.lane("copy_up", Engine::CopyUp);
  const BufferId host = builder.buffer("h", Space::Pinned, Category::Param, Bytes(400), {}, true);
  const BufferId device = builder.buffer("d", Space::Device, Category::Param, Bytes(200));
  Op op;
  op.body = Copy{DType::Fp32, DType::Bf16, Bytes(400)};
  op.lane = up;
  const OpId id = builder.op(op, {read(host), write(device)}, {});
  const Schedule schedule = builder.finish();
  const CopyPath path = copy_path(schedule, schedule.programs[0], id);
  EXPECT_EQ(path.from, Space::Pinned);
  EXPECT_EQ(path.to, Space::Device);
  EXPECT_EQ(path.written.value, 200);
  EXPECT_EQ(analytic_costs(test_machine())->copy(schedule, schedule.programs[0], id).duration, Duration(8));  // 400 / 5e10
}

Work work_of(std::int64_t flops, std::int64_t bytes = 0) { return {{kernel(Kernel::Kind::MatMul, DType::Bf16, flops, bytes)}}; }

struct Row {
  Phase phase;
  int micro_batch;
  std::int64_t flops;
};

// One program of compute ops, in this order.
Schedule rows_schedule(const std::vector<Row>& rows, std::vector<std::int32_t> stages = {0}) {
  ScheduleBuilder builder(Mesh{{{"pp", 1}}});
  builder.begin_program("pp0", {RankId(0)}, std::move(stages));
  const LaneId lane = builder.lane("compute", Engine::Compute);
  for (const Row& row : rows) {
    const Label label{row.phase, builder.name("attn"), 0, row.phase == Phase::Update ? -1 : 0, row.micro_batch, -1};
    builder.compute(lane, label, builder.work(work_of(row.flops, 8)), {}, {});
  }
  return builder.finish();
}

std::vector<std::int64_t> durations(const GivenCost& given, const Schedule& schedule) {
  const auto costs = given_costs(given, schedule);
  std::vector<std::int64_t> out;
  for (const Op& op : schedule.ops) out.push_back(ns(costs->compute(schedule, schedule.programs[0], op).duration));
  return out;
}

GivenCost given_times() {
  GivenCost given;
  given.forward = {Duration(100)};
  given.input_grad = {Duration(70)};
  given.weight_grad = {Duration(31)};
  given.optimizer = {Duration(10)};
  given.p2p = Duration(9);
  return given;
}

TEST(Given, SharesByFlopsWithTheRemainderOnTheLast) {
  const Schedule schedule = rows_schedule({{Phase::Forward, 0, 1}, {Phase::Forward, 0, 1}, {Phase::Forward, 1, 1}, {Phase::Forward, 0, 1}});
  EXPECT_EQ(durations(given_times(), schedule), (std::vector<std::int64_t>{33, 33, 100, 34}));
}

// Ops that look alike may differ by the remainder: pricing asks for each.
TEST(Given, PricingKeepsTheRemainder) {
  const Schedule schedule = rows_schedule({{Phase::Forward, 0, 1}, {Phase::Forward, 0, 1}, {Phase::Forward, 0, 1}});
  const Matching matching = match(schedule, Folding::Exact);
  const Pricing pricing = price(schedule, matching, *given_costs(given_times(), schedule), true);
  EXPECT_EQ(pricing.of(0, 0).duration, 33);
  EXPECT_EQ(pricing.of(0, 1).duration, 33);
  EXPECT_EQ(pricing.of(0, 2).duration, 34);
}

// The same work on a compute lane first: on a lane of the host it takes another time, on one of a disk none.
TEST(Analytic, PricingAsksForEveryEngine) {
  ScheduleBuilder builder(Mesh{{{"pp", 1}}});
  builder.begin_program("pp0", {RankId(0)}, {0});
  const LaneId device = builder.lane("compute", Engine::Compute), host = builder.lane("cpu", Engine::Host);
  for (const LaneId lane : {device, device, host}) builder.compute(lane, {Phase::Update, {}, 0, 0, 0, -1}, builder.work(work_of(5)), {}, {});
  const Schedule schedule = builder.finish();
  const Pricing pricing = price(schedule, match(schedule, Folding::Exact), *analytic_costs(test_machine()), true);
  EXPECT_EQ(pricing.of(0, 0).duration, pricing.of(0, 1).duration);
  EXPECT_NE(pricing.of(0, 1).duration, pricing.of(0, 2).duration);
}

// 4 ranks in a node: all-gather 3 x 1000 ns + 3/4 S / 100 GB/s, all-reduce twice that.
TEST(Pricing, AGroupOfCollectivesIsOneTransferPerKindAndCommunicator) {
  const Schedule schedule = parse_schedule(R"(mesh dp 4
comm zero axes dp
comm other axes dp
program p ranks all
  lane net network
  buffer s 1000000B resident
  buffer g 4000000B
  buffer h 8000000B
  0 gather on zero dtype fp32 bytes 4000000B read s write g lane net group 0
  1 gather on zero dtype fp32 bytes 8000000B read s write h lane net group 0
  2 gather on other dtype fp32 bytes 4000000B read s write g lane net group 0
  3 all_reduce on zero dtype fp32 bytes 4000000B update g lane net group 0
  4 gather on zero dtype fp32 bytes 4000000B read s write g lane net group 0
  5 gather on zero dtype fp32 bytes 4000000B read s write g lane net
)", "group.sched");
  const Matching matching = match(schedule, Folding::Exact);
  const auto durations_when = [&](GroupPricing groups) {
    const Pricing pricing = price(schedule, matching, *analytic_costs(test_machine()), true, groups);
    std::vector<std::int64_t> out;
    for (std::uint32_t op = 0; op < schedule.ops.size(); ++op) out.push_back(pricing.of(0, op).duration);
    return out;
  };
  EXPECT_EQ(durations_when(GroupPricing::Together), (std::vector<std::int64_t>{33'000, 93'001, 33'000, 66'000, 123'001, 33'000}));  // rounded up
  EXPECT_EQ(durations_when(GroupPricing::Alone), (std::vector<std::int64_t>{33'000, 63'000, 33'000, 66'000, 33'000, 33'000}));
}

TEST(Given, EveryPhaseHasItsTime) {
  const Schedule schedule = rows_schedule({{Phase::Forward, 0, 5}, {Phase::Recompute, 0, 5}, {Phase::Backward, 0, 3},
                                           {Phase::Backward, 0, 1}, {Phase::InputGrad, 1, 5}, {Phase::WeightGrad, 1, 5},
                                           {Phase::None, -1, 5}});
  EXPECT_EQ(durations(given_times(), schedule), (std::vector<std::int64_t>{100, 100, 75, 26, 70, 31, 0}));
}

TEST(Given, UpdateOpsShareTheOptimizerTime) {
  const Schedule schedule = rows_schedule({{Phase::Update, 0, 1}, {Phase::Update, 1, 1}, {Phase::Update, -1, 2}});
  EXPECT_EQ(durations(given_times(), schedule), (std::vector<std::int64_t>{2, 2, 6}));
}

TEST(Given, UnlabelledUpdateOpsOfSeveralStagesGetTheirSum) {
  GivenCost given = given_times();
  given.optimizer = {Duration(10), Duration(20)};
  given.forward = {Duration(100), Duration(100)};
  const Schedule schedule = rows_schedule({{Phase::Update, -1, 1}, {Phase::Update, -1, 1}}, {0, 1});
  EXPECT_EQ(durations(given, schedule), (std::vector<std::int64_t>{15, 15}));
}

TEST(Given, WithoutFlopsBytesDecideAndOneOpGetsAll) {
  const Schedule schedule = rows_schedule({{Phase::Forward, 0, 0}, {Phase::Forward, 0, 0}});
  EXPECT_EQ(durations(given_times(), schedule), (std::vector<std::int64_t>{50, 50}));
}

TEST(Given, SumsAreExactForAwkwardShares) {
  GivenCost given = given_times();
  given.forward = {Duration(999'999'999'999'999)};
  std::vector<Row> rows;
  for (int i = 1; i <= 97; ++i) rows.push_back({Phase::Forward, 0, std::int64_t{1'000'003} * i * i * i * 7919});
  std::int64_t sum = 0;
  for (const std::int64_t duration : durations(given, rows_schedule(rows))) {
    EXPECT_GE(duration, 0);
    sum += duration;
  }
  EXPECT_EQ(sum, 999'999'999'999'999);
}

TEST(Given, MessagesCostP2pTheRestNothing) {
  const Schedule schedule = rows_schedule({{Phase::Forward, 0, 1}});
  const auto costs = given_costs(given_times(), schedule);
  const auto time = [&](const OpBody& body) {
    Op op;
    op.body = body;
    return ns(costs->communicate(schedule, schedule.programs[0], op, kNode).duration);
  };
  EXPECT_EQ(time(Send{}), 9);
  EXPECT_EQ(time(Recv{}), 9);
  EXPECT_EQ(time(AllReduce{}), 0);
  EXPECT_EQ(costs->launch(schedule, schedule.ops[0]).total, Duration(0));
}

TEST(Given, OpsWithoutAChunkBelongToTheOnlyStageOrNone) {
  const Schedule one = rows_schedule({{Phase::Update, 0, 1}}, {4}), two = rows_schedule({{Phase::Update, 0, 1}}, {4, 5});
  EXPECT_EQ(one.stage_of(one.programs[0], one.ops[0]), 4);
  EXPECT_EQ(two.stage_of(two.programs[0], two.ops[0]), -1);
}

TEST(Given, AStageWithoutATimeIsRefused) {
  GivenCost given = given_times();
  given.forward = {Duration(1), Duration(2)};
  EXPECT_THROW(given_costs(given, rows_schedule({{Phase::Forward, 0, 1}}, {7})), InternalError);
}

TEST(Analytic, OneRoundingPerOpAndLaunchPerKernel) {
  ScheduleBuilder builder(Mesh{{{"pp", 1}}});
  builder.begin_program("pp0", {RankId(0)}, {0});
  const LaneId lane = builder.lane("compute", Engine::Compute);
  Work three;
  for (int i = 0; i < 3; ++i) three.kernels.push_back(kernel(Kernel::Kind::MatMul, DType::Bf16, 50'000, 0));  // 0.5 ns each
  const OpId id = builder.compute(lane, {Phase::Forward, {}, 0, 0, 0, -1}, builder.work(three), {}, {});
  const OpId empty = builder.compute(lane, {Phase::Forward, {}, 0, 0, 0, -1}, {}, {}, {});
  builder.at(empty).given = Duration(77);
  const Schedule schedule = builder.finish();
  const auto costs = analytic_costs(test_machine());
  const Cost cost = costs->compute(schedule, schedule.programs[0], schedule.ops[id.value]);
  EXPECT_EQ(cost.duration, Duration(2));  // ceil(1.5)
  EXPECT_EQ(cost.provenance, Provenance::Analytic);
  EXPECT_EQ(costs->launch(schedule, schedule.ops[id.value]).total, Duration(12000));
  EXPECT_EQ(costs->launch(schedule, schedule.ops[id.value]).first, Duration(4000));
  EXPECT_EQ(costs->compute(schedule, schedule.programs[0], schedule.ops[empty.value]).duration, Duration(77));
  EXPECT_EQ(costs->launch(schedule, schedule.ops[empty.value]).total, Duration(0));
  Op send;
  send.body = Send{};
  EXPECT_EQ(costs->launch(schedule, send).total, Duration(7000));
  send.body = HostWait{};
  EXPECT_EQ(costs->launch(schedule, send).total, Duration(0));
}

Schedule stream_on(Engine engine, Bytes bytes) {
  ScheduleBuilder builder(Mesh{{{"pp", 1}}});
  builder.begin_program("pp0", {RankId(0)}, {0});
  Kernel kernel;
  kernel.bytes = bytes;
  builder.compute(builder.lane("lane", engine), {Phase::Update, {}, 0, 0, 0, -1}, builder.work({{kernel}}), {}, {});
  return builder.finish();
}

// Bytes over the stated bandwidth of main memory; 20 GB/s where none is.
TEST(Analytic, ComputeOnTheHostIsBoundByItsMemory) {
  const Schedule schedule = stream_on(Engine::Host, Bytes(40'000));
  Machine machine = test_machine();
  EXPECT_EQ(analytic_costs(machine)->compute(schedule, schedule.programs[0], schedule.ops[0]).duration, Duration(2000));
  machine.host.memory_bandwidth = BytesPerSecond{80e9};
  EXPECT_EQ(analytic_costs(machine)->compute(schedule, schedule.programs[0], schedule.ops[0]).duration, Duration(500));
}

TEST(Analytic, ComputeOnADiskNeedsAStatedDuration) {
  const Schedule schedule = stream_on(Engine::Storage, Bytes(5));
  EXPECT_THROW(analytic_costs(test_machine())->compute(schedule, schedule.programs[0], schedule.ops[0]), InputError);
}

TEST(Stated, OnlyWhatOpsSay) {
  Schedule schedule = rows_schedule({{Phase::Forward, 0, 1}, {Phase::Forward, 0, 1}});
  schedule.ops[1].given = Duration(5);
  const auto costs = stated_costs();
  EXPECT_EQ(costs->compute(schedule, schedule.programs[0], schedule.ops[0]).duration, Duration(0));
  EXPECT_EQ(costs->compute(schedule, schedule.programs[0], schedule.ops[1]).duration, Duration(5));
  EXPECT_EQ(costs->compute(schedule, schedule.programs[0], schedule.ops[1]).provenance, Provenance::Given);
}

}  // namespace
}  // namespace steptwin
