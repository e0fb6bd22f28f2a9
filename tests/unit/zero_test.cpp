// ZeRO as BMTrain schedules it: specs/bmtrain.md 4-6 and BM-06, BM-07, BM-08, BM-12, BM-13.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schedule/base/error.h"
#include "schedule/compile.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "sim/cost/stated.h"
#include "sim/simulate.h"
#include "tests/support/random_schedule.h"

namespace steptwin {
namespace {

const std::string kEveryTwo = R"("every", "every": 2)";  // as a recompute mode

// Blocks alone unless told otherwise: BM-06 and BM-07 have neither embedding nor loss.
struct Case {
  std::string zero = R"("level": 3, "ends": "whole")";
  int layers = 3, dp = 2, pp = 1, micro_batches = 1;
  std::string recompute = "full", order = "1f1b", compute = "bf16", gradient = "fp32";
  bool tied = true;
};

Schedule compiled(const Case& c, const std::vector<Override>& overrides = {}) {
  const std::string mode = c.recompute == kEveryTwo ? c.recompute : "\"" + c.recompute + "\"";
  return compile(
      parse_scenario(fmt::format(R"({{"format": 1, "model": {{"family": "gpt", "positions": 32, "layers": {}, "hidden": 60, "heads": 4,
 "vocabulary": 97, "tied": {}}},
 "mesh": {{"pp": {}, "dp": {}}}, "batch": {{"micro_batches": {}, "sequence_length": 16}}, "zero": {{{}}}, "recompute": {{"mode": {}}},
 "precision": {{"compute": "{}", "gradient": "{}"}}, "schedule": {{"order": "{}"}}, "machine": {{"preset": "cpu"}}}})",
                                 c.layers, c.tied, c.pp, c.dp, c.micro_batches, c.zero, mode, c.compute, c.gradient, c.order),
                     "zero.json", overrides));
}

std::string problems_of(const Schedule& schedule) {
  std::string text;
  for (const Diagnostic& d : verify(schedule))
    if (d.severity == Severity::Error) text += format_diagnostic(d) + "\n";
  return text;
}

bool is_fill(const Schedule& s, const Op& op) { return s.name(op.label.segment) == "fill"; }

// "AG2", "Z2", "RS2" for the blocks' ops on the load lane; empty for others.
std::string load_name(const Schedule& s, const Op& op) {
  if (op.label.layer < 0 || !op.lane.valid()) return {};
  const char* kind = std::holds_alternative<AllGather>(op.body)       ? "AG"
                     : std::holds_alternative<ReduceScatter>(op.body) ? "RS"
                     : is_fill(s, op)                                 ? "Z"
                                                                      : nullptr;
  return kind == nullptr ? std::string() : kind + std::to_string(op.label.layer);
}

// The load lane's program, with a bar where the backward begins.
std::string load_program(const Schedule& s) {
  std::string text;
  for (const Op& op : s.ops_of(s.programs[0])) {
    const bool head = op.label.phase == Phase::Backward && s.name(op.label.segment) == "head" && std::holds_alternative<Compute>(op.body);
    const std::string name = head ? "|" : load_name(s, op);
    if (!name.empty()) text += (text.empty() ? "" : " ") + name;
  }
  return text;
}

TEST(ZeroProgram, LoadLaneOfTheThreeForms) {  // BM-06
  Case c;
  EXPECT_EQ(load_program(compiled(c)), "AG0 AG1 AG2 | AG2 Z2 AG1 Z1 RS2 AG0 Z0 RS1 RS0");
  c.zero = R"("level": 3, "ends": "whole", "reshard": false)";
  EXPECT_EQ(load_program(compiled(c)), "AG0 AG1 AG2 | Z2 Z1 RS2 Z0 RS1 RS0");
  c.zero = R"("level": 3, "ends": "whole", "form": "block")";
  EXPECT_EQ(load_program(compiled(c)), "AG0 AG1 AG2 | AG2 Z2 RS2 AG1 Z1 RS1 AG0 Z0 RS0");
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
  c.zero = R"("level": 3, "ends": "whole", "form": "block")";  // no record at exit: one block further
  EXPECT_EQ(host_waits(compiled(c)),
            (std::vector<std::string>{"AG1 < embed", "AG2 < F0", "AG3 < F1", "AG3 < F2", "AG2 < head", "AG1 < FB3", "AG0 < FB2"}));
  c.zero = R"("level": 3, "ends": "whole", "prefetch": 2)";
  EXPECT_EQ(host_waits(compiled(c)),
            (std::vector<std::string>{"AG2 < embed", "AG3 < F0", "AG3 < F1", "AG2 < F2", "AG1 < head", "AG0 < RS3"}));
  c.zero = R"("level": 3, "ends": "whole", "prefetch": 0)";
  EXPECT_TRUE(host_waits(compiled(c)).empty());
}

struct Times {
  std::int64_t gather = 1, forward = 2, backward = 6, reduce = 1;  // of a block; backward with recomputation
};

// Blocks take the stated times, everything else none. Forward is half attention, half MLP; odd times go to the MLP.
void state_times(Schedule& s, const std::function<Times(int layer)>& times) {
  for (Op& op : s.ops) {
    op.given = Duration(0);
    if (op.label.layer < 0) continue;
    const Times t = times(op.label.layer);
    const bool attention = s.name(op.label.segment) == "attn";
    const auto half = [&](std::int64_t all) { return Duration(attention ? all / 2 : all - all / 2); };
    if (std::holds_alternative<AllGather>(op.body)) op.given = Duration(t.gather);
    if (std::holds_alternative<ReduceScatter>(op.body)) op.given = Duration(t.reduce);
    if (!std::holds_alternative<Compute>(op.body)) continue;
    if (op.label.phase == Phase::Forward || op.label.phase == Phase::Recompute) op.given = half(t.forward);
    if (op.label.phase == Phase::Backward) op.given = half(t.backward - t.forward);
  }
}

Trace simulated(const Schedule& s) { return simulate(s, StatedCosts(), nullptr); }

struct Interval {
  std::int64_t start = 0, end = 0;
};

// By block: its forward, its backward with recomputation, and every op of the load lane in order of issue.
std::vector<std::pair<std::string, Interval>> timeline(const Schedule& s, const Trace& trace) {
  std::vector<std::pair<std::string, Interval>> out;
  for (const Span& span : trace.spans) {
    const Op& op = s.ops[span.op.value];
    std::string name = load_name(s, op);
    const std::string segment(s.name(op.label.segment));
    if (name.empty() && (segment == "attn" || segment == "mlp"))
      name = fmt::format("{}{}", op.label.phase == Phase::Forward ? "F" : "FB", op.label.layer);
    if (name.empty() || name.front() == 'Z' || span.rank.value != 0) continue;
    const auto same = std::find_if(out.rbegin(), out.rend(), [&](const auto& entry) { return entry.first == name; });
    if (same != out.rend() && name.front() == 'F')
      same->second.end = ns(span.end);
    else
      out.push_back({name, {ns(span.start), ns(span.end)}});
  }
  return out;
}

std::string timeline_text(const Schedule& s, const Trace& trace) {
  std::string text;
  for (const auto& [name, interval] : timeline(s, trace)) text += fmt::format("{} [{},{}] ", name, interval.start, interval.end);
  return text;
}

TEST(ZeroTimes, TimelinesOfFourBlocks) {  // BM-07
  Case c;
  c.layers = 4;
  Schedule s = compiled(c);
  state_times(s, [](int) { return Times{1, 2, 6, 1}; });
  EXPECT_EQ(timeline_text(s, simulated(s)),
            "AG0 [0,1] F0 [1,3] AG1 [1,2] F1 [3,5] AG2 [3,4] F2 [5,7] AG3 [5,6] F3 [7,9] AG3 [7,8] FB3 [9,15] AG2 [9,10] RS3 [15,16] "
            "FB2 [15,21] AG1 [16,17] RS2 [21,22] FB1 [21,27] AG0 [22,23] RS1 [27,28] FB0 [27,33] RS0 [33,34] ");
  state_times(s, [](int) { return Times{4, 2, 6, 4}; });
  EXPECT_EQ(timeline_text(s, simulated(s)),
            "AG0 [0,4] F0 [4,6] AG1 [4,8] F1 [8,10] AG2 [8,12] F2 [12,14] AG3 [12,16] F3 [16,18] AG3 [16,20] FB3 [20,26] AG2 [20,24] "
            "RS3 [26,30] FB2 [26,32] AG1 [30,34] RS2 [34,38] FB1 [34,40] AG0 [38,42] RS1 [42,46] FB0 [42,48] RS0 [48,52] ");
}

std::int64_t forward_end(const Schedule& s, const Trace& trace) {
  std::int64_t end = 0;
  for (const Span& span : trace.spans)
    if (s.ops[span.op.value].label.phase == Phase::Forward && s.ops[span.op.value].label.layer >= 0) end = std::max(end, ns(span.end));
  return end;
}

TEST(ZeroTimes, EndsOfTheThreeForms) {  // BM-07, table
  struct Row {
    Times times;
    int layers;
    std::int64_t forward, list3, list2, block3;
  };
  const Row rows[] = {{{1, 2, 6, 1}, 3, 7, 26, 26, 30},
                      {{4, 2, 6, 4}, 3, 14, 40, 36, 54},
                      {{1, 2, 6, 1}, 4, 9, 34, 34, 40},
                      {{4, 2, 6, 4}, 4, 18, 52, 46, 72},
                      {{2, 3, 9, 4}, 4, 14, 54, 54, 72}};
  for (const Row& row : rows) {
    const auto ends = [&](const char* zero) {
      Case c;
      c.layers = row.layers;
      c.zero = zero;
      Schedule s = compiled(c);
      state_times(s, [&](int) { return row.times; });
      const Trace trace = simulated(s);
      EXPECT_EQ(forward_end(s, trace), row.forward);
      return ns(trace.makespan);
    };
    EXPECT_EQ(ends(R"("level": 3, "ends": "whole")"), row.list3);
    EXPECT_EQ(ends(R"("level": 3, "ends": "whole", "reshard": false)"), row.list2);
    EXPECT_EQ(ends(R"("level": 3, "ends": "whole", "form": "block")"), row.block3);
  }
}

// Section 4: AG(0) + sum of max(compute(k-1), AG(k)) + compute(L-1), whatever the blocks take; section 5: the serial backward's sum.
TEST(ZeroTimes, ForwardAndSerialBackwardAreTheirSums) {
  test::Random random(5);
  for (int round = 0; round < 200; ++round) {
    Case c;
    c.layers = 1 + static_cast<int>(random.below(7));
    c.zero = R"("level": 3, "ends": "whole", "form": "block")";
    std::vector<Times> t;
    for (int layer = 0; layer < c.layers; ++layer) {
      const auto draw = [&] { return static_cast<std::int64_t>(1 + random.below(1000)); };
      t.push_back({draw(), draw(), 0, draw()});
      t.back().backward = t.back().forward + draw();
    }
    Schedule s = compiled(c);
    state_times(s, [&](int layer) { return t[static_cast<std::size_t>(layer)]; });
    const Trace trace = simulated(s);
    std::int64_t forward = t[0].gather;
    for (std::size_t k = 1; k < t.size(); ++k) forward += std::max(t[k - 1].forward, t[k].gather);
    const std::int64_t last_starts = forward;
    forward += t.back().forward;
    EXPECT_EQ(forward_end(s, trace), forward);
    // The first gather of the backward starts with the last block's forward.
    std::int64_t end = std::max(forward, last_starts + t.back().gather) + t.back().backward + t.back().reduce;
    for (std::size_t k = t.size() - 1; k-- > 0;) end += t[k].gather + t[k].backward + t[k].reduce;
    EXPECT_EQ(ns(trace.makespan), c.layers > 1 ? end : std::max(forward, 2 * t[0].gather) + t[0].backward + t[0].reduce);
  }
}

// specs/schedules.md 5.2, equal groups: forward a + f + (G-1) max(a, f); backward with all groups resharded a + b + k + (G-1) max(a, b, k).
TEST(ZeroTimes, FsdpClosedForms) {
  test::Random random(9);
  for (int round = 0; round < 300; ++round) {
    const auto draw = [&] { return static_cast<std::int64_t>(1 + random.below(1000)); };
    const std::int64_t a = round == 0 ? 2 : draw(), f = round == 0 ? 3 : draw(), b = round == 0 ? 6 : draw(), k = round == 0 ? 4 : draw();
    Case c;
    c.layers = round == 0 ? 4 : 2 + static_cast<int>(random.below(7));
    c.recompute = "none";
    c.zero = R"("level": 3, "ends": "whole", "form": "fsdp")";
    Schedule s = compiled(c);
    const auto end_with = [&](std::int64_t forward) {
      state_times(s, [&](int) { return Times{a, forward, forward + b, k}; });
      const Trace trace = simulated(s);
      return std::pair{forward_end(s, trace), ns(trace.makespan)};
    };
    EXPECT_EQ(end_with(f).first, a + f + (c.layers - 1) * std::max(a, f));
    // Without forward times the backward's first gather begins when the forward ends.
    const auto [forward, all] = end_with(0);
    EXPECT_EQ(all - forward, a + b + k + (c.layers - 1) * std::max({a, b, k})) << a << " " << b << " " << k << " G " << c.layers;
    if (round == 0) {
      EXPECT_EQ(all - forward, 30);
    }
  }
}

// How many buffers of a category that some op of a block makes are busy at once: from the start (or the issue) of their first op to the
// end of their last.
enum class Clock : std::uint8_t { Device, Host };
std::int64_t most_at_once(const Schedule& s, const Trace& trace, Category category, std::optional<Phase> phase, Clock clock) {
  const Program& p = s.programs[0];
  std::map<std::uint32_t, Interval> lives;
  for (const Span& span : trace.spans) {
    const Op& op = s.ops[span.op.value];
    if (span.rank.value != 0) continue;
    for (const Access& access : s.accesses_of(span.op)) {
      const Buffer& buffer = p.buffers[access.buffer.value];
      if (buffer.category != category || buffer.resident || op.label.layer < 0) continue;
      const auto known = lives.find(access.buffer.value);
      if (known != lives.end()) known->second.end = std::max(known->second.end, ns(span.end));
      if (known == lives.end() && (!phase || op.label.phase == *phase))
        lives[access.buffer.value] = {ns(clock == Clock::Host ? span.issue : span.start), ns(span.end)};
    }
  }
  std::map<std::int64_t, std::int64_t> changes;
  for (const auto& [buffer, life] : lives) ++changes[life.start], --changes[life.end];
  std::int64_t now = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, now += change);
  return most;
}

TEST(ZeroMemory, PeaksAreTwoGatheredAndTwoGradients) {  // BM-12
  for (int layers = 3; layers <= 8; ++layers)
    for (const Times& times : {Times{1, 2, 6, 1}, Times{4, 2, 6, 4}, Times{2, 3, 9, 4}, Times{3, 3, 9, 3}}) {
      Case c;
      c.layers = layers;
      Schedule s = compiled(c);
      state_times(s, [&](int) { return times; });
      const Trace trace = simulated(s);
      for (const Clock clock : {Clock::Device, Clock::Host}) {
        EXPECT_EQ(most_at_once(s, trace, Category::GatheredParam, Phase::Forward, clock), 2);
        EXPECT_EQ(most_at_once(s, trace, Category::GatheredParam, Phase::Backward, clock), 2);
      }
      EXPECT_EQ(most_at_once(s, trace, Category::Gradient, {}, Clock::Device), 2);
      c.zero = R"("level": 3, "ends": "whole", "reshard": false)";
      s = compiled(c);
      state_times(s, [&](int) { return times; });
      EXPECT_EQ(most_at_once(s, simulated(s), Category::GatheredParam, {}, Clock::Device), layers);
      EXPECT_EQ(most_at_once(s, simulated(s), Category::Gradient, {}, Clock::Device), 2);
    }
}

std::int64_t active_peak(const Trace& trace) {
  std::int64_t most = 0;
  for (const MemoryPeak& peak : trace.peaks)
    if (peak.curve == Curve::Active) most = std::max(most, peak.bytes.value);
  return most;
}

TEST(ZeroMemory, WithoutTheThrottleEveryGatherRunsAhead) {  // invariant 8
  std::int64_t before = 0;
  for (const int depth : {1, 2, 3, 0}) {
    Case c;
    c.layers = 6;
    c.recompute = "none";
    c.zero = fmt::format(R"("level": 3, "ends": "whole", "prefetch": {})", depth);
    Schedule s = compiled(c);
    state_times(s, [](int) { return Times{1, 4, 12, 1}; });
    const Trace trace = simulated(s);
    EXPECT_EQ(most_at_once(s, trace, Category::GatheredParam, Phase::Forward, Clock::Host), depth == 0 ? 6 : depth + 1);
    EXPECT_GT(active_peak(trace), before) << depth;
    before = active_peak(trace);
  }
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

Schedule without_dependency(const Schedule& s, std::size_t index) {
  Schedule out = s;
  out.deps.erase(out.deps.begin() + static_cast<std::ptrdiff_t>(index));
  for (std::uint32_t& offset : out.dep_offsets)
    if (offset > index) --offset;
  return out;
}

// Those that guard no data: the accumulation waits for the whole load lane, and so does the first optimizer op; a group waits for what any
// of its members waits for.
bool may_be_redundant(const Schedule& s, OpId op) {
  const auto segment = s.name(s.ops[op.value].label.segment);
  return segment == "accumulate" || segment == "adam" || s.ops[op.value].group.valid();
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

}  // namespace
}  // namespace steptwin
