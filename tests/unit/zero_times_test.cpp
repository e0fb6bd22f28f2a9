// When the ops of ZeRO run, to the nanosecond, and what is in memory at once: specs/bmtrain.md 4-6, BM-07, BM-12; specs/schedules.md 5.2.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "tests/support/random_schedule.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::compiled;
using test::load_name;
using test::simulated;
using Case = test::ZeroCase;

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
std::vector<Times> random_times(test::Random& random, int layers) {
  const auto draw = [&] { return static_cast<std::int64_t>(1 + random.below(1000)); };
  std::vector<Times> times;
  for (int layer = 0; layer < layers; ++layer) {
    times.push_back({draw(), draw(), 0, draw()});
    times.back().backward = times.back().forward + draw();
  }
  return times;
}

TEST(ZeroTimes, ForwardAndSerialBackwardAreTheirSums) {
  test::Random random(5);
  for (int round = 0; round < 200; ++round) {
    Case c;
    c.layers = 1 + static_cast<int>(random.below(7));
    c.zero = R"("level": 3, "ends": "whole", "form": "block")";
    const std::vector<Times> t = random_times(random, c.layers);
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

// The queue rules 2, 3, 6, 7 and 9 of 5.2 for groups of any size, copies free: gather(g) of the forward waits for copy-out(g-2), which is
// when forward(g-2) starts; of the backward for copy-out(g+1); backward(g) for the reduction of g+2.
TEST(ZeroTimes, FsdpQueueRules) {
  test::Random random(10);
  for (int round = 0; round < 300; ++round) {
    Case c;
    c.layers = 1 + static_cast<int>(random.below(7));
    c.recompute = "none";
    c.zero = R"("level": 3, "ends": "whole", "form": "fsdp")";
    const std::vector<Times> t = random_times(random, c.layers);
    Schedule s = compiled(c);
    state_times(s, [&](int layer) { return t[static_cast<std::size_t>(layer)]; });
    const Trace trace = simulated(s);
    std::int64_t gathers = 0, compute = 0, reductions = 0, copied = 0, before = 0;  // ends; starts of the last two computes
    for (const Times& x : t) {
      gathers = std::max(gathers, before) + x.gather;
      const std::int64_t start = std::max(compute, gathers);
      before = copied, copied = start, compute = start + x.forward;
    }
    EXPECT_EQ(forward_end(s, trace), compute);
    std::int64_t earlier = 0;  // end of the reduction before the last one
    for (auto x = t.rbegin(); x != t.rend(); ++x) {
      gathers = std::max(gathers, copied) + x->gather;
      copied = std::max({compute, gathers, earlier});
      compute = copied + x->backward - x->forward;
      earlier = reductions;
      reductions = std::max(reductions, compute) + x->reduce;
    }
    EXPECT_EQ(ns(trace.makespan), reductions) << c.layers;
  }
}

// One communicator, three layers, a 1, f 2, b 6, k: gathers and forwards end at 7, the backward's first gather was [3,4]; backward(2) [7,13],
// gather(1) [7,8], issued before reduction(2) [13,13+k]. gather(0), issued before reduction(1), waits behind it: with k 8 [21,22], after
// backward(1) [13,19]; backward(0) [22,28], reductions [22,30] and [30,38]. Otherwise backward(0) is [19,25], reductions end at 21, 29, 37.
TEST(ZeroTimes, FsdpOnOneCommunicatorRunsInTheOrderOfIssue) {
  const auto end = [](int communicators) {
    Case c;
    c.recompute = "none";
    c.zero = fmt::format(R"("level": 3, "ends": "whole", "form": "fsdp", "communicators": {})", communicators);
    Schedule s = compiled(c);
    state_times(s, [](int) { return Times{1, 2, 8, 8}; });
    EXPECT_EQ(test::problems_of(s), "");
    return ns(simulated(s).makespan);
  };
  EXPECT_EQ(end(2), 37);
  EXPECT_EQ(end(1), 38);
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

}  // namespace
}  // namespace steptwin
