// Scenario -> Schedule: what the compiled programs hold and say.
#include "schedule/compile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "schedule/base/error.h"
#include "schedule/ir/liveness.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "schedule/place_messages.h"

namespace steptwin {
namespace {

ModelShape small_model(bool tied, Family family = Family::Gpt) {
  ModelShape model;
  model.name = "small";
  model.family = family;
  model.layers = 4;
  model.hidden = 64;
  model.heads = model.kv_heads = 4;
  model.head_size = 16;
  model.ffn = 256;
  model.vocabulary = 128;
  model.positions = 32;
  model.tied = tied;
  return model;
}

Scenario scenario_of(const std::string& order, std::uint32_t pp, std::uint32_t dp, std::int64_t micro_batches, bool tied = false) {
  Scenario scenario;
  scenario.name = "test";
  scenario.file = "test.json";
  scenario.model = small_model(tied);
  scenario.mesh.axes = {{"pp", pp}, {"dp", dp}};
  scenario.micro_batches = micro_batches;
  scenario.batch = {2, 32};
  scenario.order = order;
  return scenario;
}

template <class Body>
std::size_t count_ops(const Schedule& schedule, const Program& program) {
  const auto ops = schedule.ops_of(program);
  return static_cast<std::size_t>(
      std::count_if(ops.begin(), ops.end(), [](const Op& op) { return std::holds_alternative<Body>(op.body); }));
}

std::int64_t resident(const Program& program, Category category) {
  std::int64_t sum = 0;
  for (const Buffer& buffer : program.buffers) sum += buffer.resident && buffer.category == category ? buffer.bytes.value : 0;
  return sum;
}

std::string diagnostics_text(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& d : diagnostics) text += format_diagnostic(d) + "\n";
  return text;
}

// Micro-batches in flight: saved-tensor buffers of the program's first layer half, by their derived lifetimes.
std::int64_t peak_in_flight(const Schedule& schedule, const Program& program) {
  const auto lives = lifetimes(schedule, program);
  std::map<std::uint32_t, std::int64_t> change;
  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.category != Category::Activation || !buffer.layout.valid() || schedule.layouts[buffer.layout.value].name != "mlp.saved")
      continue;
    ++change[lives[b].first];
    --change[lives[b].last + 1];
  }
  std::int64_t now = 0, peak = 0;
  for (const auto& [op, delta] : change) peak = std::max(peak, now += delta);
  return peak;
}

TEST(Compile, StageLayers) {
  Scenario scenario = scenario_of("1f1b", 3, 1, 1);
  scenario.model.layers = 11;
  EXPECT_EQ(stage_layers(scenario, 3), (std::vector<std::int64_t>{4, 4, 3}));
  EXPECT_EQ(stage_layers(scenario, 4), (std::vector<std::int64_t>{3, 3, 3, 2}));
  scenario.layers_per_stage = {3, 4, 4};
  EXPECT_EQ(stage_layers(scenario, 3), (std::vector<std::int64_t>{3, 4, 4}));
  EXPECT_THROW(stage_layers(scenario, 4), InputError);
  scenario.layers_per_stage = {3, 4, 5};
  EXPECT_THROW(stage_layers(scenario, 3), InputError);
  scenario.layers_per_stage = {12, -1, 0};
  EXPECT_THROW(stage_layers(scenario, 3), InputError);
}

TEST(Compile, BackwardOrderOfGpipe) {
  Scenario scenario = scenario_of("gpipe", 2, 1, 3);
  EXPECT_EQ(scenario_actions(scenario)[0][3].micro_batch, 0);
  scenario.backward_descending = true;
  EXPECT_EQ(scenario_actions(scenario)[0][3].micro_batch, 2);
}

TEST(Compile, RefusesWhatItCannotServe) {
  Scenario scenario = scenario_of("1f1b", 6, 1, 4);  // 4 layers: stage 4 has nothing to do
  EXPECT_THROW(compile(scenario), InputError);
  scenario = scenario_of("1f2b", 2, 1, 4);
  EXPECT_THROW(compile(scenario), InputError);
  scenario = scenario_of("1f1b", 2, 1, 4);
  scenario.mesh.axes.push_back({"tp", 2});
  EXPECT_THROW(compile(scenario), InputError);
}

std::string csv_file(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

constexpr P2pMode kModes[] = {P2pMode::Lanes, P2pMode::OneLane, P2pMode::Grouped, P2pMode::Compute, P2pMode::ComputeRecv};

// The matrix: sound for every combination, without a warning.
TEST(Compile, VerifiesCleanly) {
  for (const char* order : {"gpipe", "1f1b"})
    for (const std::uint32_t pp : {1u, 2u, 4u})
      for (const std::uint32_t dp : {1u, 2u})
        for (const RecomputeMode recompute : {RecomputeMode::None, RecomputeMode::Full})
          for (const bool tied : {false, true})
            for (const P2pMode p2p : kModes)
              for (const GradientReduce reduce : {GradientReduce::Overlap, GradientReduce::End}) {
                Scenario scenario = scenario_of(order, pp, dp, 5, tied);
                scenario.recompute = recompute;
                scenario.p2p = p2p;
                scenario.gradient_reduce = reduce;
                scenario.bucket_bytes = Bytes(100'000);
                const auto problems = verify(compile(scenario));
                ASSERT_TRUE(problems.empty()) << order << " pp " << pp << " dp " << dp << " recompute " << static_cast<int>(recompute)
                                              << " tied " << tied << " p2p " << static_cast<int>(p2p) << "\n"
                                              << diagnostics_text(problems);
              }
}

// B-D14: receives directly before and sends directly behind what needs and makes them hang 1F1B when all stand on the compute lane; the
// verdict says so before a run. GPipe does not hang, and keeps them there.
TEST(Compile, BlockingMessagesPlacedDirectly) {
  for (const auto& [order, hangs] : {std::pair{"1f1b", true}, std::pair{"gpipe", false}}) {
    Scenario scenario = scenario_of(order, 2, 1, 4);
    const ActionGrid direct = place_messages(scenario_actions(scenario), P2pMode::Lanes);
    EXPECT_EQ(place_messages(scenario_actions(scenario), P2pMode::Compute) == direct, !hangs);
    scenario.order = "csv";
    scenario.order_csv = csv_file("direct.csv", write_csv(direct));
    scenario.p2p = P2pMode::Compute;
    const auto problems = verify(compile(scenario));
    EXPECT_EQ(problems.empty(), !hangs);
    if (hangs) {
      EXPECT_EQ(problems.front().code, "DEADLOCK");
    }
  }
}

// Megatron's and BMTrain's order of blocking messages: the next input is received before the gradient is sent (specs/bmtrain.md 11).
TEST(Compile, BlockingMessagesOf1f1bReceiveTheNextInputFirst) {
  const Scenario scenario = scenario_of("1f1b", 3, 1, 3);
  const ActionGrid placed = place_messages(scenario_actions(scenario), P2pMode::Compute);
  std::string middle;
  for (const Action& action : placed[1]) middle += (middle.empty() ? "" : " ") + to_string(action);
  EXPECT_EQ(middle,
            "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_B0 1B0 1RECV_F2 1SEND_B0 1F2 1SEND_F2 1RECV_B1 1B1 1SEND_B1 1RECV_B2 1B2 "
            "1SEND_B2");
}

// No deadlock in any message mode, for few and many micro-batches, with and without a run-ahead limit.
TEST(Compile, NoDeadlockForAnySize) {
  for (const char* order : {"gpipe", "1f1b"})
    for (const std::uint32_t pp : {2u, 3u, 4u, 6u})
      for (const std::int64_t m : {1, 2, 3, 5, 7})
        for (const P2pMode p2p : kModes)
          for (const int ahead : {0, 1, 2}) {
            Scenario scenario = scenario_of(order, pp, 1, m, true);
            scenario.model.layers = 6;
            scenario.p2p = p2p;
            scenario.p2p_metadata = ahead == 2 && p2p != P2pMode::Grouped;
            if (ahead > 0) scenario.machine.emplace().host.run_ahead_micro_batches = ahead;
            const auto problems = find_deadlock(compile(scenario));
            ASSERT_TRUE(problems.empty()) << order << " pp " << pp << " m " << m << " p2p " << static_cast<int>(p2p) << " ahead " << ahead
                                          << "\n"
                                          << diagnostics_text(problems);
          }
}

// specs/schedules.md 2.3: a warm-up vector deadlocks iff it increases somewhere.
TEST(Compile, WarmUpVectorsDeadlockAsStated) {
  for (std::int64_t code = 0; code < 125; ++code) {
    Scenario scenario = scenario_of("1f1b", 3, 1, 6);
    scenario.warm_up = {code / 25, code / 5 % 5, code % 5};
    const bool increases = scenario.warm_up[0] < scenario.warm_up[1] || scenario.warm_up[1] < scenario.warm_up[2];
    for (const P2pMode p2p : {P2pMode::Lanes, P2pMode::OneLane}) {
      scenario.p2p = p2p;
      EXPECT_EQ(!find_deadlock(compile(scenario)).empty(), increases) << scenario.warm_up[0] << scenario.warm_up[1] << scenario.warm_up[2];
    }
  }
}

// specs/schedules.md 2.1, 2.2: 2m boundary tensors sent per rank and step, m on the first and the last.
TEST(Compile, MessageCounts) {
  for (const char* order : {"gpipe", "1f1b"}) {
    const Scenario scenario = scenario_of(order, 4, 1, 7);
    const Schedule schedule = compile(scenario);
    ASSERT_EQ(schedule.programs.size(), 4u);
    for (std::size_t r = 0; r < 4; ++r) {
      const std::size_t expected = r == 0 || r == 3 ? 7 : 14;
      EXPECT_EQ(count_ops<Send>(schedule, schedule.programs[r]), expected);
      EXPECT_EQ(count_ops<Recv>(schedule, schedule.programs[r]), expected);
    }
    for (const Op& op : schedule.ops) {
      if (!is_point_to_point(op.body)) continue;
      EXPECT_EQ(bytes_of(op.body).value, 2 * 32 * 64 * 2);  // b*s*h in bf16
      EXPECT_GE(op.label.micro_batch, 0);
      EXPECT_TRUE(op.label.phase == Phase::Forward || op.label.phase == Phase::Backward);
    }
  }
}

TEST(Compile, LanesOfEachMode) {
  Scenario scenario = scenario_of("1f1b", 3, 2, 4, true);
  const auto lanes = [&](std::size_t program) {
    std::string names;
    const Schedule schedule = compile(scenario);
    for (const Lane& lane : schedule.programs[program].lanes) names += lane.name + " ";
    return names;
  };
  EXPECT_EQ(lanes(0), "compute send_fwd recv_bwd dp tied ");
  EXPECT_EQ(lanes(1), "compute send_fwd recv_fwd send_bwd recv_bwd dp ");
  EXPECT_EQ(lanes(2), "compute recv_fwd send_bwd dp tied ");
  scenario.p2p = P2pMode::OneLane;
  EXPECT_EQ(lanes(1), "compute p2p dp ");
  EXPECT_EQ(compile(scenario).communicators[0].name, "pp");
  scenario.mesh.axes = {{"pp", 1}, {"dp", 1}};
  EXPECT_EQ(lanes(0), "compute ");
}

// RECV directly before its consumer, SEND directly behind its producer.
TEST(Compile, MessagesStandBesideTheirCompute) {
  const Schedule schedule = compile(scenario_of("1f1b", 4, 1, 6));
  for (const Program& program : schedule.programs) {
    const auto ops = schedule.ops_of(program);
    for (std::size_t k = 0; k < ops.size(); ++k) {
      const bool send = std::holds_alternative<Send>(ops[k].body), recv = std::holds_alternative<Recv>(ops[k].body);
      if (!send && !recv) continue;
      const Op& partner = recv ? ops[k + 1] : ops[k - 1];
      EXPECT_TRUE(std::holds_alternative<Compute>(partner.body));
      EXPECT_EQ(partner.label.phase, ops[k].label.phase);
      EXPECT_EQ(partner.label.micro_batch, ops[k].label.micro_batch);
    }
  }
}

TEST(Compile, GroupedFusesAsMegatron) {
  Scenario scenario = scenario_of("1f1b", 4, 1, 8);
  scenario.p2p = P2pMode::Grouped;
  const Schedule schedule = compile(scenario);
  // Megatron, m - w steady iterations: send_forward_recv_backward in each, send_backward_recv_forward in all but the last.
  for (std::size_t r = 0; r < 4; ++r) {
    std::map<std::uint32_t, std::vector<const Op*>> groups;
    for (const Op& op : schedule.ops_of(schedule.programs[r])) {
      if (op.group.valid()) groups[op.group.value].push_back(&op);
    }
    const std::size_t steady = 8 - (3 - r);
    const std::size_t forward_pairs = r < 3 ? steady : 0, backward_pairs = r > 0 ? steady - 1 : 0;
    EXPECT_EQ(groups.size(), forward_pairs + backward_pairs) << r;
    for (const auto& [id, members] : groups) {
      ASSERT_EQ(members.size(), 2u);
      EXPECT_TRUE(std::holds_alternative<Send>(members[0]->body) && std::holds_alternative<Recv>(members[1]->body));
      EXPECT_NE(members[0]->label.phase, members[1]->label.phase);
    }
  }
}

// specs/schedules.md 2.1, 2.2: min(m, p-r) and m micro-batches in flight.
TEST(Compile, ActivationsInFlight) {
  for (std::int64_t m = 1; m <= 7; ++m) {
    const Schedule one = compile(scenario_of("1f1b", 4, 1, m)), fill = compile(scenario_of("gpipe", 4, 1, m));
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(peak_in_flight(one, one.programs[r]), std::min<std::int64_t>(m, 4 - static_cast<std::int64_t>(r)));
      EXPECT_EQ(peak_in_flight(fill, fill.programs[r]), m);
    }
  }
}

// specs/memory.md T-22 (18 B/param with fp32 gradients) and T-20 (16 B/param with 16-bit ones); fp32: 4 + 4 + 8, no master copy.
TEST(Compile, ResidentStates) {
  struct Case {
    DType compute, gradient;
    OptimizerKind optimizer;
    std::int64_t bytes;
  };
  const Case cases[] = {{DType::Bf16, DType::Fp32, OptimizerKind::Adam, 18},
                        {DType::Bf16, DType::Bf16, OptimizerKind::Adam, 16},
                        {DType::Fp32, DType::Fp32, OptimizerKind::Adam, 16},
                        {DType::Bf16, DType::Fp32, OptimizerKind::None, 6}};
  for (const Case& c : cases) {
    for (const bool tied : {false, true}) {
      for (const std::uint32_t pp : {1u, 2u}) {
        Scenario scenario = scenario_of("1f1b", pp, 1, 2, tied);
        scenario.compute = c.compute;
        scenario.gradient = c.gradient;
        scenario.optimizer = c.optimizer;
        const Schedule schedule = compile(scenario);
        std::int64_t sum = 0;
        for (const Program& program : schedule.programs)
          for (const Category category : {Category::Param, Category::Gradient, Category::Optimizer}) sum += resident(program, category);
        const std::int64_t copies = tied && pp > 1 ? 128 * 64 : 0;  // the last stage's copy of the table
        EXPECT_EQ(sum, c.bytes * (parameter_count(scenario.model) + copies)) << c.bytes << ' ' << tied << ' ' << pp;
      }
    }
  }
}

TEST(Compile, EveryParameterIsNamedOnce) {
  const Schedule schedule = compile(scenario_of("1f1b", 2, 1, 2));
  std::map<std::string, int> seen;
  for (const Program& program : schedule.programs)
    for (const Buffer& buffer : program.buffers)
      if (buffer.category == Category::Param)
        for (const TensorSpec& tensor : schedule.layouts[buffer.layout.value].tensors) ++seen[tensor.name];
  std::size_t expected = embedding_parameters(small_model(false)).size() + head_parameters(small_model(false)).size();
  for (std::int64_t layer = 0; layer < 4; ++layer)
    expected += attention_parameters(small_model(false), layer).size() + mlp_parameters(small_model(false), layer).size();
  EXPECT_EQ(seen.size(), expected);
  for (const auto& [name, times] : seen) EXPECT_EQ(times, 1) << name;
}

// The first contribution of a step writes a gradient, the others update it.
TEST(Compile, GradientsAreWrittenOnceThenUpdated) {
  for (const bool tied : {false, true}) {
    const Schedule schedule = compile(scenario_of("1f1b", 1, 1, 3, tied));
    const Program& program = schedule.programs[0];
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<int, int>> uses;  // (buffer, tensor) -> writes, updates
    for (std::uint32_t op = 0; op < program.op_count; ++op) {
      for (const Access& access : schedule.accesses_of(OpId(op))) {
        if (program.buffers[access.buffer.value].category != Category::Gradient || access.mode == AccessMode::Read) continue;
        auto& [writes, updates] = uses[{access.buffer.value, access.part.kind == Part::Kind::Tensor ? access.part.a : 99u}];
        if (access.mode == AccessMode::Write) {
          EXPECT_EQ(writes + updates, 0);
        }
        ++(access.mode == AccessMode::Write ? writes : updates);
      }
    }
    for (const auto& [what, times] : uses) {
      EXPECT_EQ(times.first, 1);
      // 3 micro-batches; the shared table takes the head's and the embedding's contribution of each.
      EXPECT_EQ(times.second, tied && what.second == 0 ? 5 : 2);
    }
  }
}

TEST(Compile, RecomputeKeepsOnlyLayerInputs) {
  Scenario scenario = scenario_of("gpipe", 2, 1, 6);
  const Schedule plain = compile(scenario);
  scenario.recompute = RecomputeMode::Full;
  const Schedule again = compile(scenario);
  EXPECT_EQ(peak_in_flight(plain, plain.programs[0]), 2 * 6);  // two layers a stage
  EXPECT_EQ(peak_in_flight(again, again.programs[0]), 1);      // dies behind the op that made it
  for (const Program& program : again.programs) {
    const auto lives = lifetimes(again, program);
    std::string order;
    for (const Op& op : again.ops_of(program)) {
      if (op.label.micro_batch == 0 && std::holds_alternative<Compute>(op.body) && op.label.phase != Phase::Forward)
        order += std::string(name_of(op.label.phase)) + std::string(again.name(op.label.segment)) + std::to_string(op.label.layer) + " ";
    }
    EXPECT_EQ(order, program.name == "pp0" ? "Rattn1 Rmlp1 Bmlp1 Battn1 Rattn0 Rmlp0 Bmlp0 Battn0 Bembed-1 "
                                           : "Bhead-1 Rattn3 Rmlp3 Bmlp3 Battn3 Rattn2 Rmlp2 Bmlp2 Battn2 ");
    std::int64_t layer_inputs = 0;
    for (std::size_t b = 0; b < program.buffers.size(); ++b) {
      const Buffer& buffer = program.buffers[b];
      if (buffer.category == Category::Recompute) {
        EXPECT_LE(lives[b].last - lives[b].first, 3u);
      }
      const bool hidden = buffer.layout.valid() && again.layouts[buffer.layout.value].name == "hidden";
      if (hidden && lives[b].last - lives[b].first > 8 && buffer.category != Category::Workspace) ++layer_inputs;
    }
    EXPECT_GE(layer_inputs, 2 * 5);  // two layers; the last micro-batches may live shortly
  }
}

// Frameworks recompute inside backward: the first R of a stage waits for the gradient of its output.
TEST(Compile, RecomputeWaitsForTheGradient) {
  Scenario scenario = scenario_of("1f1b", 2, 1, 3);
  scenario.recompute = RecomputeMode::Full;
  const Schedule schedule = compile(scenario);
  int checked = 0;
  for (std::uint32_t op = 0; op < schedule.programs[0].op_count; ++op) {
    if (schedule.ops[op].label.phase != Phase::Recompute || schedule.ops[op - 1].label.phase != Phase::Backward ||
        !std::holds_alternative<Recv>(schedule.ops[op - 1].body))
      continue;
    EXPECT_EQ(std::vector<OpId>(schedule.deps_of(OpId(op)).begin(), schedule.deps_of(OpId(op)).end()), (std::vector<OpId>{OpId(op - 1)}));
    ++checked;
  }
  EXPECT_EQ(checked, 3);
}

TEST(Compile, DataParallelBuckets) {
  Scenario scenario = scenario_of("1f1b", 2, 2, 3);
  scenario.bucket_bytes = Bytes(150'000);
  for (const GradientReduce reduce : {GradientReduce::Overlap, GradientReduce::End}) {
    scenario.gradient_reduce = reduce;
    const Schedule schedule = compile(scenario);
    for (const Program& program : schedule.programs) {
      std::int64_t bytes = 0;
      std::uint32_t first = 0, last_backward = 0;
      std::size_t reduces = 0;
      for (std::uint32_t k = 0; k < program.op_count; ++k) {
        const Op& op = schedule.ops[program.first_op.value + k];
        if (op.label.phase == Phase::Backward) last_backward = k;
        if (!std::holds_alternative<AllReduce>(op.body)) continue;
        if (reduces++ == 0) first = k;
        bytes += bytes_of(op.body).value;
        EXPECT_EQ(std::get<AllReduce>(op.body).dtype, DType::Fp32);
      }
      EXPECT_EQ(bytes, resident(program, Category::Gradient));
      EXPECT_GT(reduces, 1u);
      EXPECT_EQ(first > last_backward, reduce == GradientReduce::End);
    }
  }
  scenario.bucket_bytes = Bytes(1 << 30);
  const Schedule one = compile(scenario);
  for (const Program& program : one.programs) EXPECT_EQ(count_ops<AllReduce>(one, program), 1u);
}

// The sum over both copies comes behind the data-parallel one and before both Adam ops of the table.
TEST(Compile, TiedSum) {
  Scenario scenario = scenario_of("1f1b", 4, 2, 3, true);
  const Schedule schedule = compile(scenario);
  ASSERT_EQ(schedule.communicators.back().name, "pp.tied");
  EXPECT_EQ(schedule.communicators.back().groups, (std::vector<std::vector<std::uint32_t>>{{0, 3}}));
  for (std::size_t r = 0; r < 4; ++r) {
    const Program& program = schedule.programs[r];
    std::vector<std::string> tail;
    for (const Op& op : schedule.ops_of(program)) {
      const std::string_view segment = schedule.name(op.label.segment);
      if (segment == "tied") {
        EXPECT_EQ(bytes_of(op.body).value, 128 * 64 * 4);
      }
      if (op.label.phase == Phase::Update) tail.emplace_back(segment);
    }
    EXPECT_EQ(std::count(tail.begin(), tail.end(), "tied"), r == 0 || r == 3 ? 1 : 0);
    EXPECT_EQ(tail.back(), "adam");
    if (r == 0 || r == 3) {
      const auto tied = std::find(tail.begin(), tail.end(), "tied");
      EXPECT_EQ(std::count(tied, tail.end(), "dp"), 0);
      EXPECT_EQ(std::count(tail.begin(), tied, "adam"), 0);
    }
  }
}

TEST(Compile, RunAheadLimit) {
  Scenario scenario = scenario_of("gpipe", 2, 1, 5);
  scenario.machine.emplace().host.run_ahead_micro_batches = 2;
  const Schedule schedule = compile(scenario);
  for (const Program& program : schedule.programs) {
    EXPECT_EQ(count_ops<HostWait>(schedule, program), 2u * (5 - 2));
    for (std::uint32_t k = 0; k < program.op_count; ++k) {
      const Op& op = schedule.ops[program.first_op.value + k];
      const HostWait* wait = std::get_if<HostWait>(&op.body);
      if (!wait) continue;
      const Op& next = schedule.ops[program.first_op.value + k + 1];
      const Op& target = schedule.ops[wait->target.value];
      EXPECT_EQ(target.label.phase, next.label.phase);
      EXPECT_EQ(target.label.micro_batch, next.label.micro_batch - 2);
    }
  }
}

std::string golden_csv(const std::string& schedule, const std::string& format) {
  std::ifstream file(std::string(TEST_DIR) + "/data/schedule_golden_orders.csv");
  std::string line, text, rank = "0";
  while (std::getline(file, line)) {
    std::vector<std::string> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    if (cells.back().ends_with('\r')) cells.back().pop_back();
    if (cells[0] + "," + cells[1] + "," + cells[2] + "," + cells[3] != schedule || cells[4] != format) continue;
    if (!text.empty()) text += cells[5] == rank ? "," : "\n";
    rank = cells[5];
    text += cells[7];
  }
  return text;
}

// Orders that split I and W or put several stages on a rank, from CSV: sound in every mode.
TEST(Compile, CsvOrders) {
  for (const char* key : {"zb-h1,4,8,1", "interleaved1f1b,4,8,2", "zbv,4,8,2"}) {
    for (const char* format : {"compute_only", "compute_comms"}) {
      for (const bool tied : {false, true}) {
        for (const P2pMode p2p : {P2pMode::Lanes, P2pMode::OneLane}) {
          for (const RecomputeMode recompute : {RecomputeMode::None, RecomputeMode::Full}) {
            Scenario scenario = scenario_of("csv", 4, 2, 8, tied);
            scenario.model.layers = 8;
            scenario.order_csv = csv_file("order.csv", golden_csv(key, format));
            scenario.p2p = p2p;
            scenario.recompute = recompute;
            scenario.bucket_bytes = Bytes(1);
            const auto problems = verify(compile(scenario));
            ASSERT_TRUE(problems.empty()) << key << ' ' << format << " tied " << tied << " p2p " << static_cast<int>(p2p) << "\n"
                                          << diagnostics_text(problems);
          }
        }
      }
    }
  }
}

TEST(Compile, CsvMustFitTheScenario) {
  Scenario scenario = scenario_of("csv", 2, 1, 2);
  scenario.order_csv = csv_file("fit.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_NO_THROW(compile(scenario));
  scenario.micro_batches = 3;
  EXPECT_THROW(compile(scenario), InputError);
  scenario = scenario_of("csv", 4, 1, 2);
  scenario.order_csv = csv_file("fit.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_THROW(compile(scenario), InputError);
  scenario.order_csv = "/nonexistent/x.csv";
  EXPECT_THROW(compile(scenario), EnvironmentError);
}

// The text of whole schedules: any change of an op, operand or dependency shows. Regenerate with UPDATE_GOLDEN=1.
TEST(Compile, OpsGoldens) {
  struct Golden {
    const char* name;
    Scenario scenario;
  };
  std::vector<Golden> goldens;
  const auto add = [&](const char* name, std::uint32_t pp, std::uint32_t dp, bool tied) -> Scenario& {
    goldens.push_back({name, scenario_of("1f1b", pp, dp, 2, tied)});
    Scenario& scenario = goldens.back().scenario;
    scenario.model.layers = 2;
    return scenario;
  };
  add("1f1b_pp2_tied", 2, 1, true);
  add("1f1b_pp1_tied_dp2", 1, 2, true).bucket_bytes = Bytes(100'000);
  add("1f1b_pp2_recompute", 2, 1, false).recompute = RecomputeMode::Full;
  add("1f1b_pp2_grouped", 2, 1, false).p2p = P2pMode::Grouped;
  Scenario& split = add("split_pp2_one_lane", 2, 1, false);
  split.order = "csv";
  split.order_csv = csv_file("split.csv", "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n");
  split.p2p = P2pMode::OneLane;
  Scenario& batches = add("bmtrain_pp2_zero3", 2, 2, true);
  batches.order = "gpipe";
  batches.p2p = P2pMode::Compute;
  batches.pipeline = {PipelineForm::Bmtrain, 2};
  batches.micro_batches = 1;
  batches.recompute = RecomputeMode::Full;
  batches.zero.level = 3;
  batches.zero.reshard = false;
  for (const Golden& golden : goldens) {
    const std::string path = std::string(TEST_DIR) + "/golden/ops/" + golden.name + ".sched",
                      text = print_schedule(compile(golden.scenario));
    if (std::getenv("UPDATE_GOLDEN")) std::ofstream(path) << text;
    std::ifstream file(path);
    std::stringstream expected;
    expected << file.rdbuf();
    EXPECT_EQ(text, expected.str()) << golden.name;
  }
}

}  // namespace
}  // namespace steptwin
