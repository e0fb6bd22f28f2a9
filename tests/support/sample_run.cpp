#include "tests/support/sample_run.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "schedule/base/digest.h"
#include "schedule/ir/builder.h"
#include "traces/breakdown.h"

namespace steptwin::test {
namespace {

constexpr std::int64_t kMessageBytes = 1000;

struct Lanes {
  LaneId compute, send_fwd, recv_fwd, send_bwd, recv_bwd;
};

struct Comms {
  CommId forward, backward;
};

Lanes declare_lanes(ScheduleBuilder& b) {
  return {b.lane("compute", Engine::Compute), b.lane("send_fwd", Engine::Network), b.lane("recv_fwd", Engine::Network),
          b.lane("send_bwd", Engine::Network), b.lane("recv_bwd", Engine::Network)};
}

Label label(ScheduleBuilder& b, Phase phase, std::int32_t micro_batch) {
  Label l;
  l.phase = phase;
  l.segment = b.name(phase == Phase::Update ? "adam" : "stage");
  l.chunk = 0;
  l.layer = phase == Phase::Update ? -1 : 0;
  l.micro_batch = micro_batch;
  return l;
}

Op message(OpBody body, LaneId lane, std::int32_t micro_batch) {
  Op op;
  op.body = body;
  op.lane = lane;
  op.label.micro_batch = micro_batch;
  op.label.chunk = 0;
  return op;
}

constexpr Peer kNext{+1, true}, kPrevious{-1, true};
Send send_to(CommId comm, Peer peer) { return {comm, DType::Bf16, Bytes(kMessageBytes), peer}; }
Recv recv_from(CommId comm, Peer peer) { return {comm, DType::Bf16, Bytes(kMessageBytes), peer}; }

// Ops and their spans side by side; times in ns.
class Recorder {
 public:
  Recorder(ScheduleBuilder& builder, Trace& trace, RankId rank) : builder_(builder), trace_(trace), rank_(rank) {}

  OpId compute(LaneId lane, Label l, std::vector<OpId> deps, std::int64_t start, std::int64_t end) {
    return note(builder_.compute(lane, l, {}, {}, std::move(deps)), start, end);
  }
  OpId message(Op op, std::vector<OpId> deps, std::int64_t start, std::int64_t end) {
    return note(builder_.op(op, {}, std::move(deps)), start, end);
  }

 private:
  OpId note(OpId op, std::int64_t start, std::int64_t end) {
    trace_.spans.push_back({0, rank_, op, at_ns(0), at_ns(start), at_ns(start), at_ns(end)});
    return op;
  }
  ScheduleBuilder& builder_;
  Trace& trace_;
  RankId rank_;
};

void first_stage(ScheduleBuilder& b, Trace& trace, Comms comm, std::vector<RankId> ranks) {
  Recorder at(b, trace, ranks.front());
  b.begin_program("pp0", std::move(ranks), {0});
  const Lanes lanes = declare_lanes(b);
  const OpId f0 = at.compute(lanes.compute, label(b, Phase::Forward, 0), {}, 0, 10);
  at.message(message(send_to(comm.forward, kNext), lanes.send_fwd, 0), {f0}, 10, 12);
  const OpId f1 = at.compute(lanes.compute, label(b, Phase::Forward, 1), {}, 10, 20);
  at.message(message(send_to(comm.forward, kNext), lanes.send_fwd, 1), {f1}, 20, 22);
  const OpId g0 = at.message(message(recv_from(comm.backward, kNext), lanes.recv_bwd, 0), {}, 42, 44);
  at.compute(lanes.compute, label(b, Phase::Backward, 0), {g0}, 44, 64);
  const OpId g1 = at.message(message(recv_from(comm.backward, kNext), lanes.recv_bwd, 1), {}, 72, 74);
  at.compute(lanes.compute, label(b, Phase::Backward, 1), {g1}, 74, 94);
  at.compute(lanes.compute, label(b, Phase::Update, -1), {}, 94, 99);
}

void second_stage(ScheduleBuilder& b, Trace& trace, Comms comm, std::vector<RankId> ranks) {
  Recorder at(b, trace, ranks.front());
  b.begin_program("pp1", std::move(ranks), {1});
  const Lanes lanes = declare_lanes(b);
  const OpId x0 = at.message(message(recv_from(comm.forward, kPrevious), lanes.recv_fwd, 0), {}, 10, 12);
  at.compute(lanes.compute, label(b, Phase::Forward, 0), {x0}, 12, 22);
  const OpId b0 = at.compute(lanes.compute, label(b, Phase::Backward, 0), {}, 22, 42);
  at.message(message(send_to(comm.backward, kPrevious), lanes.send_bwd, 0), {b0}, 42, 44);
  const OpId x1 = at.message(message(recv_from(comm.forward, kPrevious), lanes.recv_fwd, 1), {}, 20, 22);
  at.compute(lanes.compute, label(b, Phase::Forward, 1), {x1}, 42, 52);
  const OpId b1 = at.compute(lanes.compute, label(b, Phase::Backward, 1), {}, 52, 72);
  at.message(message(send_to(comm.backward, kPrevious), lanes.send_bwd, 1), {b1}, 72, 74);
  at.compute(lanes.compute, label(b, Phase::Update, -1), {}, 72, 77);
}

MemoryPeak peak(RankId rank, Curve curve, std::int64_t params, std::int64_t activations, std::int64_t at, OpId op) {
  MemoryPeak p;
  p.rank = rank;
  p.curve = curve;
  p.bytes = Bytes(params + activations);
  p.at = at_ns(at);
  p.op = op;
  if (curve == Curve::Reserved) return p;
  p.by_category[static_cast<std::size_t>(Category::Param)] = Bytes(params);
  p.by_category[static_cast<std::size_t>(Category::Activation)] = Bytes(activations);
  return p;
}

MemorySample sample(RankId rank, std::uint8_t category, std::int64_t at, std::int64_t bytes) {
  return {rank, Space::Device, Curve::Allocated, category, at_ns(at), Bytes(bytes)};
}

void add_memory(Trace& trace, RankId rank, std::int64_t scale, OpId op) {
  trace.peaks.push_back(peak(rank, Curve::Allocated, 100, 200 * scale, 10, op));
  trace.peaks.push_back(peak(rank, Curve::Active, 100, 250 * scale, 12, op));
  trace.peaks.push_back(peak(rank, Curve::Reserved, 100, 300 * scale, 12, op));
  trace.peaks.push_back(peak(rank, Curve::Live, 100, 0, 0, {}));
  for (const auto& [at, bytes] : {std::pair{0, 0}, {10, 200}, {94, 0}}) {
    trace.samples.push_back(sample(rank, static_cast<std::uint8_t>(Category::Activation), at, bytes * scale));
    trace.samples.push_back(sample(rank, kCategories, at, 100 + bytes * scale));
  }
}

void finish(SampleRun& run, ScheduleBuilder& b) {
  run.schedule = b.finish();
  run.digest =
      sha256_hex("sample of " + std::to_string(run.schedule.mesh.size()) + " ranks, " + std::to_string(run.schedule.ops.size()) + " ops");
  run.trace.op_count = run.trace.spans.size();
  run.trace.engine = "replay";
}

std::vector<RankId> row(std::uint32_t first, std::uint32_t count) {
  std::vector<RankId> ranks;
  for (std::uint32_t i = 0; i < count; ++i) ranks.emplace_back(first + i);
  return ranks;
}

void large_program(ScheduleBuilder& b, Trace& trace, CommId ring, std::uint32_t rank, std::uint32_t ops) {
  Recorder at(b, trace, RankId(rank));
  b.begin_program("pp" + std::to_string(rank), {RankId(rank)}, {static_cast<std::int32_t>(rank)});
  const Lanes lanes = declare_lanes(b);
  for (std::uint32_t i = 0; i < ops; ++i) {
    const std::int64_t start = std::int64_t{i / 3} * 1'000'000 + 12345;
    const auto micro_batch = static_cast<std::int32_t>(i / 3 % 64);
    switch (i % 3) {
      case 0:
        at.message(message(recv_from(ring, kPrevious), lanes.recv_fwd, micro_batch), {}, start, start + 100'000);
        break;
      case 1:
        at.compute(lanes.compute, label(b, Phase::Forward, micro_batch), {}, start + 100'000, start + 900'000);
        break;
      default:
        at.message(message(send_to(ring, kNext), lanes.send_fwd, micro_batch), {}, start, start + 100'000);
        break;
    }
    if (i % 8 == 0) trace.samples.push_back(sample(RankId(rank), kCategories, start, std::int64_t{i} << 20));
  }
}

}  // namespace

SampleRun folded_sample(std::uint32_t replicas) {
  SampleRun run;
  ScheduleBuilder b(Mesh{{{"pp", 2}, {"dp", replicas}}});
  const Comms comm{b.communicator("pp.fwd", {"pp"}), b.communicator("pp.bwd", {"pp"})};
  first_stage(b, run.trace, comm, row(0, replicas));
  second_stage(b, run.trace, comm, row(replicas, replicas));
  finish(run, b);
  Trace& trace = run.trace;
  for (std::uint32_t r = 0; r < 2 * replicas; ++r) trace.stand_in.emplace_back(r < replicas ? 0 : replicas);
  trace.simulated = {RankId(0), RankId(replicas)};
  trace.step_time = trace.makespan = Duration(99);
  const std::span<const Span> spans = trace.spans;
  trace.breakdowns.push_back(break_down(run.schedule, RankId(0), spans.first(9), at_ns(0), Duration(99)));
  trace.breakdowns.push_back(break_down(run.schedule, RankId(replicas), spans.subspan(9), at_ns(0), Duration(99)));
  trace.largest_rank_span = Duration(94);
  add_memory(trace, RankId(0), 2, OpId(2));
  add_memory(trace, RankId(replicas), 1, OpId(10));
  return run;
}

SampleRun pipeline_sample() { return folded_sample(1); }

SampleRun large_sample(std::uint32_t ranks, std::uint32_t ops_per_rank) {
  SampleRun run;
  ScheduleBuilder b(Mesh{{{"pp", ranks}}});
  const CommId ring = b.communicator("ring", {"pp"});
  for (std::uint32_t r = 0; r < ranks; ++r) large_program(b, run.trace, ring, r, ops_per_rank);
  finish(run, b);
  for (std::uint32_t r = 0; r < ranks; ++r) run.trace.stand_in.emplace_back(r);
  run.trace.simulated = run.trace.stand_in;
  run.trace.step_time = run.trace.makespan = Duration(std::int64_t{ops_per_rank / 3 + 1} * 1'000'000);
  return run;
}

RunInfo sample_info() {
  RunInfo info;
  info.scenario_name = "sample";
  info.scenario_path = "scenarios/sample.json";
  info.scenario_json = R"({"format":1})";
  info.scenario_sha256 = sha256_hex(info.scenario_json);
  info.order = "gpipe";
  info.tool_version = "0.1.0";
  info.git_sha = "0000000";
  return info;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "steptwin-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace steptwin::test
