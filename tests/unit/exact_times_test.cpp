// Closed forms to the nanosecond, from the scenario text to the summary: specs/schedules.md 2.1, 2.2, 3 and 8.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "schedule/compile.h"
#include "schedule/mechanisms/plan.h"
#include "schedule/orders/orders.h"
#include "tests/support/rehearsal.h"

namespace steptwin {
namespace {

using test::GivenPipeline;
using test::Rehearsal;
using test::rehearse;

constexpr std::int64_t kForward = 12'347, kInputGrad = 11'003, kWeightGrad = 7'001;  // primes or odd: no factor in common
constexpr std::int64_t kBackward = kInputGrad + kWeightGrad, kUnit = kForward + kBackward;

GivenPipeline pipeline(const std::string& order, std::int64_t p, std::int64_t m) {
  GivenPipeline g;
  g.order = order;
  g.p = p;
  g.m = m;
  g.forward_ns = kForward;
  g.input_grad_ns = kInputGrad;
  g.weight_grad_ns = kWeightGrad;
  return g;
}

std::string name_of_case(const GivenPipeline& g) {
  return g.order + " p " + std::to_string(g.p) + " m " + std::to_string(g.m) + " hop " + std::to_string(g.hop_ns) + " " + g.p2p + " " +
         g.recompute;
}

// 2.1, 2.2: step (m+p-1)(tF+tB), bubble rate (p-1)/(m+p-1).
void expect_step(const Rehearsal& run, const GivenPipeline& g, std::int64_t unit) {
  ASSERT_EQ(run.trace.outcome.status, Status::Ok) << run.trace.outcome.text;
  EXPECT_EQ(ns(run.summary.step_time), (g.m + g.p - 1) * unit);
  EXPECT_EQ(ns(run.summary.makespan), (g.m + g.p - 1) * unit);
  EXPECT_EQ(ns(run.summary.largest_rank_span), (g.m + g.p - 1) * unit) << "rank 0 works first and last";
  const double rate = static_cast<double>(g.p - 1) / static_cast<double>(g.m + g.p - 1);
  EXPECT_NEAR(run.summary.bubble_rate_makespan.value(), rate, 1e-15);
  EXPECT_NEAR(run.summary.bubble_rate_span.value(), rate, 1e-15);
  EXPECT_NEAR(run.summary.bubble_theory.value(), rate, 1e-15);
}

// And every rank idle for (p-1)(tF+tB), all of it bubble.
void expect_closed_form(const GivenPipeline& g, std::int64_t unit) {
  const Rehearsal run = rehearse(g);
  expect_step(run, g, unit);
  EXPECT_NEAR(run.summary.bubble_fraction.value(), static_cast<double>(g.p - 1) / static_cast<double>(g.m + g.p - 1), 1e-15);
  for (const RankRow& row : run.summary.ranks) {
    EXPECT_EQ(ns(row.compute), g.m * unit);
    EXPECT_EQ(ns(row.work), g.m * unit);
    EXPECT_EQ(ns(row.bubble), (g.p - 1) * unit);
    EXPECT_EQ(ns(row.exposed_communication), 0);
    EXPECT_EQ(ns(row.other), 0);
  }
}

TEST(ExactTimes, EqualStagesWithoutCommunication) {
  for (const char* order : {"gpipe", "1f1b"})
    for (const std::int64_t p : {1, 2, 4, 8})
      for (const std::int64_t m : {1, 2, 4, 7, 8, 16})
        for (const bool tied : {false, true}) {
          GivenPipeline g = pipeline(order, p, m);
          g.tied = tied;
          SCOPED_TRACE(name_of_case(g));
          expect_closed_form(g, kUnit);
        }
}

TEST(ExactTimes, EveryWayOfPlacingMessages) {
  for (const char* order : {"gpipe", "1f1b"})
    for (const char* p2p : {"one_lane", "grouped"})
      for (const std::int64_t p : {2, 4, 8})
        for (const std::int64_t m : {1, 2, 7, 8, 16}) {
          GivenPipeline g = pipeline(order, p, m);
          g.p2p = p2p;
          SCOPED_TRACE(name_of_case(g));
          // The spans of a group do not tell how long each of its messages moves data, so its classes are left out.
          if (g.p2p == "grouped")
            expect_step(rehearse(g), g, kUnit);
          else
            expect_closed_form(g, kUnit);
        }
}

// Given costs: the forward time again for the recomputed layers.
TEST(ExactTimes, RecomputeAddsTheForwardTime) {
  for (const char* order : {"gpipe", "1f1b"})
    for (const std::int64_t p : {1, 2, 4})
      for (const std::int64_t m : {1, 4, 7})
        for (const std::int64_t layers : {1, 3}) {
          GivenPipeline g = pipeline(order, p, m);
          g.recompute = "full";
          g.layers_per_stage = layers;
          SCOPED_TRACE(name_of_case(g));
          expect_closed_form(g, kUnit + kForward);
        }
}

// 2.2: extra = c(2(p-1)(m/p+1) - 2) if p divides m; c(2(p-1) + 2(p-1)(m-1)/p) if p divides m-1; hop c <= forward + backward.
TEST(ExactTimes, HopLatencyOf1F1B) {
  int cases = 0;
  for (const std::int64_t p : {2, 3, 4, 5, 8, 16})
    for (const std::int64_t rounds : {1, 2, 5})
      for (const std::int64_t hop : {std::int64_t{1}, std::int64_t{601}, kForward - 1, kForward, kBackward, 2 * kForward, kUnit})
        for (const std::int64_t m : {rounds * p, rounds * p + 1}) {
          GivenPipeline g = pipeline("1f1b", p, m);
          g.hop_ns = hop;
          SCOPED_TRACE(name_of_case(g));
          const std::int64_t round_trips = m % p == 0 ? 2 * (p - 1) * (m / p + 1) - 2 : 2 * (p - 1) + 2 * (p - 1) * ((m - 1) / p);
          EXPECT_EQ(test::step_ns(g), (m + p - 1) * kUnit + hop * round_trips);
          ++cases;
        }
  EXPECT_EQ(cases, 6 * 3 * 7 * 2);
}

// "Monotone between" (2.2): with more micro-batches the hops cost more, never less.
TEST(ExactTimes, HopLatencyOf1F1BGrowsWithTheMicroBatches) {
  for (const std::int64_t p : {3, 4, 8}) {
    std::int64_t before = 0;
    for (std::int64_t m = 1; m <= 3 * p; ++m) {
      GivenPipeline g = pipeline("1f1b", p, m);
      g.hop_ns = 5'000;
      const std::int64_t extra = test::step_ns(g) - (m + p - 1) * kUnit;
      EXPECT_GE(extra, before) << name_of_case(g);
      before = extra;
    }
  }
}

// 2.1: 2(p-1)c, independent of m, while the link keeps up; above that each direction is a flow shop whose slowest stage is the
// link: p*t + (p-1)c + (m-1)max(t, c).
TEST(ExactTimes, HopLatencyOfGpipe) {
  const auto flow = [](std::int64_t p, std::int64_t m, std::int64_t t, std::int64_t c) {
    return p * t + (p - 1) * c + (m - 1) * std::max(t, c);
  };
  for (const std::int64_t p : {2, 4, 8})
    for (const std::int64_t m : {1, 2, 7, 16})
      for (const std::int64_t hop : {std::int64_t{1}, std::int64_t{601}, kForward, kForward + 1, kBackward, 2 * kBackward}) {
        GivenPipeline g = pipeline("gpipe", p, m);
        g.hop_ns = hop;
        SCOPED_TRACE(name_of_case(g));
        const std::int64_t step = test::step_ns(g);
        EXPECT_EQ(step, flow(p, m, kForward, hop) + flow(p, m, kBackward, hop));
        if (hop <= kForward) {
          EXPECT_EQ(step, (m + p - 1) * kUnit + 2 * (p - 1) * hop);
        }
      }
}

// ---- in flight ------------------------------------------------------------------------------------------------------------

// Bytes of category activation that one micro-batch keeps on a stage from its forward to its backward: what each segment saves,
// and the hidden states between segments that are kept as inputs. The stage's own input is a receive buffer.
std::int64_t kept_activation_bytes(const Scenario& s, std::int64_t stage, std::int64_t stages, std::int64_t layers) {
  std::vector<SegmentKind> segments;
  if (stage == 0) segments.push_back(SegmentKind::Embedding);
  for (std::int64_t l = 0; l < layers; ++l) segments.insert(segments.end(), {SegmentKind::Attention, SegmentKind::Mlp});
  if (stage == stages - 1) segments.push_back(SegmentKind::Head);
  std::int64_t bytes = 0;
  for (std::size_t k = 0; k < segments.size(); ++k) {
    const SegmentCost cost = segment_cost(s.model, segments[k], s.batch, s.compute, s.gradient);
    bytes += cost.saved_bytes.value;
    if (k > 0 && cost.keeps_input) bytes += 2 * 32 * 64 * 2;  // b*s*h in bf16
  }
  return bytes;
}

std::int64_t peak_of(const Trace& trace, RankId rank, Curve curve, Category category) {
  std::int64_t peak = 0;
  for (const MemorySample& sample : trace.samples)
    if (sample.rank == rank && sample.curve == curve && sample.category_index == static_cast<std::uint8_t>(category))
      peak = std::max(peak, sample.bytes.value);
  return peak;
}

// Section 3: m in flight on every rank of GPipe, min(m, p-r) of 1F1B. The last stage but one and all before also hold the output
// that is being sent.
TEST(ExactTimes, ActivationsInFlight) {
  constexpr std::int64_t kHidden = 2 * 32 * 64 * 2;
  for (const char* order : {"gpipe", "1f1b"})
    for (const std::int64_t p : {1, 2, 4, 8})
      for (const std::int64_t m : {1, 2, 4, 7, 8, 16}) {
        GivenPipeline g = pipeline(order, p, m);
        g.layers_per_stage = 2;
        SCOPED_TRACE(name_of_case(g));
        const Rehearsal run = rehearse(g);
        for (std::int64_t r = 0; r < p; ++r) {
          const std::int64_t in_flight = std::string(order) == "gpipe" ? m : std::min(m, p - r);
          const std::int64_t sent = r + 1 < p ? kHidden : 0;
          const std::int64_t kept = kept_activation_bytes(run.scenario, r, p, 2);
          EXPECT_EQ(peak_of(run.trace, RankId(static_cast<std::uint32_t>(r)), Curve::Live, Category::Activation), in_flight * kept + sent)
              << r;
          for (const MemoryPeak& peak : run.trace.peaks) {
            if (peak.rank.value != r || peak.space != Space::Device || peak.curve != Curve::Allocated) continue;
            // in issue order; at the peak the output may be sent already
            const std::int64_t bytes = peak.by_category[static_cast<std::size_t>(Category::Activation)].value;
            EXPECT_TRUE(bytes == in_flight * kept || bytes == in_flight * kept + sent) << r << ": " << bytes << " kept " << kept;
          }
        }
      }
}

// ---- given costs ----------------------------------------------------------------------------------------------------------

// Sum of durations by (rank, phase, micro-batch).
std::map<std::tuple<std::uint32_t, Phase, std::int32_t>, std::int64_t> sums_of(const Rehearsal& run) {
  std::map<std::tuple<std::uint32_t, Phase, std::int32_t>, std::int64_t> sums;
  for (const Span& span : run.trace.spans) {
    const Op& op = run.schedule.ops[span.op.value];
    if (std::holds_alternative<Compute>(op.body))
      sums[{span.rank.value, op.label.phase, op.label.micro_batch}] += ns(span.end - span.start);
  }
  return sums;
}

void expect_exact_sums(const Rehearsal& run, std::int64_t forward, std::int64_t backward, std::int64_t optimizer) {
  const auto sums = sums_of(run);
  std::size_t compared = 0;
  for (const auto& [key, sum] : sums) {
    const Phase phase = std::get<1>(key);
    const bool again = phase == Phase::Forward || phase == Phase::Recompute;
    EXPECT_EQ(sum, again                      ? forward
                   : phase == Phase::Backward ? backward
                                              : optimizer)
        << "rank " << std::get<0>(key) << " " << name_of(phase) << std::get<2>(key);
    ++compared;
  }
  EXPECT_GE(compared, run.summary.ranks.size() * (2 * static_cast<std::size_t>(run.scenario.micro_batches) + 1));
}

TEST(GivenCosts, SumsAreExactOverAwkwardSplits) {
  for (const std::int64_t layers : {1, 3, 7})
    for (const char* recompute : {"none", "full"})
      for (const std::int64_t scale : {1, 3, 1'000'003}) {
        GivenPipeline g = pipeline("1f1b", 3, 4);
        g.layers_per_stage = layers;
        g.recompute = recompute;
        g.forward_ns = 13 * scale;
        g.input_grad_ns = 17 * scale;
        g.weight_grad_ns = 2 * scale;
        g.optimizer_ns = 10'007 * scale;
        g.tied = layers == 3;
        SCOPED_TRACE(name_of_case(g) + " layers " + std::to_string(layers));
        expect_exact_sums(rehearse(g), 13 * scale, 19 * scale, 10'007 * scale);
      }
}

// Two segments of equal work in one layer (Llama with 3 ffn = 4 hidden): on the middle stage the last of their two Adam ops gets the
// remainder of an odd time.
TEST(GivenCosts, EqualWorkMayTakeUnequalTimes) {
  const std::string text =
      R"({"format": 1, "model": {"family": "llama", "layers": 3, "hidden": 48, "heads": 4, "ffn": 64, "vocabulary": 16},
    "mesh": {"pp": 3}, "batch": {"micro_batches": 2, "sequence_length": 16},
    "cost": {"model": "given", "forward_us": 0.013, "input_grad_us": 0.017, "weight_grad_us": 0.005, "optimizer_us": 0.103}})";
  const Rehearsal run = rehearse(text);
  EXPECT_EQ(ns(run.summary.ranks.at(1).other), 103);
  expect_exact_sums(run, 13, 22, 103);
}

// The optimizer stands behind the last backward: the step is longer by it on the first rank, which ends last.
TEST(GivenCosts, OptimizerTimeEndsTheStep) {
  for (const char* order : {"gpipe", "1f1b"})
    for (const std::int64_t p : {1, 2, 4}) {
      GivenPipeline g = pipeline(order, p, 5);
      g.optimizer_ns = 777;
      const Rehearsal run = rehearse(g);
      EXPECT_EQ(ns(run.summary.step_time), (5 + p - 1) * kUnit + 777);
      EXPECT_EQ(ns(run.summary.largest_rank_span), (5 + p - 1) * kUnit) << "the span is that of forward and backward work";
      for (const RankRow& row : run.summary.ranks) {
        EXPECT_EQ(ns(row.other), 777);
        EXPECT_EQ(ns(row.bubble), (p - 1) * kUnit);
      }
    }
}

// One slow stage: its warm-up forwards hide the round trip through the stages behind it, so 1F1B takes its m micro-batches plus the
// way there and back through the stages before it.
TEST(ExactTimes, TheSlowestStageDecides) {
  GivenPipeline g = pipeline("1f1b", 4, 9);
  for (std::int64_t slow = 0; slow < 4; ++slow) {
    const std::string stage = std::to_string(slow);
    std::vector<Override> o = {{"cost.forward_us", "[1,1,1,1]"}, {"cost.input_grad_us", "[1,1,1,1]"}, {"cost.weight_grad_us", "[0,0,0,0]"}};
    o.push_back({"cost.forward_us." + stage, "5"});
    o.push_back({"cost.input_grad_us." + stage, "5"});
    const Rehearsal run = rehearse(test::scenario_text(g), o);
    EXPECT_EQ(ns(run.summary.step_time), 9 * 10'000 + slow * 2'000) << slow;
    EXPECT_EQ(ns(run.summary.ranks[static_cast<std::size_t>(slow)].bubble), slow * 2'000);
  }
}

// ---- published and regression vectors ---------------------------------------------------------------------------------------

std::string joined(const std::vector<std::int64_t>& values) {
  std::string out;
  for (const std::int64_t value : values) out += (out.empty() ? "" : ";") + std::to_string(value);
  return out;
}

// Peak number of micro-batches of a rank between the start of their forward and the end of their backward.
std::vector<std::int64_t> peaks_until_w(const Rehearsal& run) {
  std::map<std::uint32_t, std::map<std::int32_t, std::pair<std::int64_t, std::int64_t>>>
      lives;  // [rank][mb] -> forward start, backward end
  for (const Span& span : run.trace.spans) {
    const Op& op = run.schedule.ops[span.op.value];
    if (!std::holds_alternative<Compute>(op.body) || op.label.micro_batch < 0) continue;
    auto& life = lives[span.rank.value].try_emplace(op.label.micro_batch, ns(span.start), 0).first->second;
    life.first = std::min(life.first, ns(span.start));
    life.second = std::max(life.second, ns(span.end));
  }
  std::vector<std::int64_t> peaks;
  for (const auto& [rank, of_rank] : lives) {
    std::int64_t peak = 0;
    for (const auto& [mb, life] : of_rank)
      peak =
          std::max(peak, static_cast<std::int64_t>(std::count_if(of_rank.begin(), of_rank.end(), [&, at = life.first](const auto& other) {
                     return other.second.first <= at && at < other.second.second;
                   })));
    peaks.push_back(peak);
  }
  return peaks;
}

// specs/schedules.md 8: tF = tI = tW = 1.
TEST(ExactTimes, UnitTimeVectors) {
  int compared = 0;
  for (const auto& row : test::csv_rows(TEST_DIR "/data/schedule_unit_time_vectors.csv")) {
    if (row[0] != "gpipe" && row[0] != "1f1b") continue;
    GivenPipeline g;
    g.order = row[0];
    g.p = std::stoll(row[1]);
    g.m = std::stoll(row[2]);
    SCOPED_TRACE(name_of_case(g));
    const Rehearsal run = rehearse(g);
    const auto slots = [](const std::string& cell) { return std::stoll(cell) * 1000; };
    EXPECT_EQ(ns(run.summary.makespan), slots(row[4]));
    EXPECT_EQ(ns(run.summary.largest_rank_span), slots(row[5]));
    for (const RankRow& rank : run.summary.ranks) EXPECT_EQ(ns(rank.work), slots(row[6]));
    EXPECT_EQ(ns(run.summary.makespan - run.summary.ranks[0].work), slots(row[7]));
    EXPECT_EQ(ns(run.summary.largest_rank_span - run.summary.ranks[0].work), slots(row[8]));
    EXPECT_NEAR(run.summary.bubble_rate_makespan.value(), std::stod(row[7]) / std::stod(row[4]), 1e-15);
    EXPECT_EQ(joined(peaks_until_w(run)), row[9]);
    ++compared;
  }
  EXPECT_EQ(compared, 12);
}

// Zero Bubble Pipeline Parallelism (ICLR 2024): bubble rates of Table 5 (by the largest rank span, four digits) from the stage times
// of Table 6; 1F1B rows. "sync time" of the optimizer is not part of them.
TEST(ExactTimes, ZeroBubbleTable5) {
  std::map<std::string, std::vector<std::string>> times;  // model, p, m -> Table 6
  for (const auto& row : test::csv_rows(TEST_DIR "/data/zero_bubble_table6_stage_times.csv"))
    times[row[0] + "," + row[1] + "," + row[7]] = row;
  const auto as_ns = [](const std::string& ms) { return std::llround(std::stod(ms) * 1e6); };
  int compared = 0;
  for (const auto& row : test::csv_rows(TEST_DIR "/data/zero_bubble_table5_1f1b.csv")) {
    const auto& t = times.at(row[0] + "," + row[1] + "," + row[2]);
    GivenPipeline g;
    g.p = std::stoll(row[1]);
    g.m = std::stoll(row[2]);
    g.forward_ns = as_ns(t[8]);
    g.input_grad_ns = as_ns(t[9]);
    g.weight_grad_ns = as_ns(t[10]);
    g.hop_ns = as_ns(t[11]);
    SCOPED_TRACE(row[0] + " " + name_of_case(g));
    EXPECT_NEAR(rehearse(g).summary.bubble_rate_span.value(), std::stod(row[4]), 0.00005);
    ++compared;
  }
  EXPECT_EQ(compared, 6);
}

// 2.1: the order of the backward passes is an option; equal times give an equal step, and the last stage frees its newest first.
TEST(ExactTimes, GpipeDescendingBackward) {
  const GivenPipeline g = pipeline("gpipe", 4, 6);
  const Rehearsal ascending = rehearse(g), descending = rehearse(test::scenario_text(g), {{"schedule.backward", "descending"}});
  EXPECT_EQ(ascending.summary.step_time, descending.summary.step_time);
  const auto backwards = [](const Rehearsal& run) {
    std::vector<std::int64_t> order;
    for (const Span& span : run.trace.spans) {
      const Label& label = run.schedule.ops[span.op.value].label;
      if (span.rank.value != 3 || label.phase != Phase::Backward || !std::holds_alternative<Compute>(run.schedule.ops[span.op.value].body))
        continue;
      if (order.empty() || order.back() != label.micro_batch) order.push_back(label.micro_batch);
    }
    return joined(order);
  };
  EXPECT_EQ(backwards(ascending), "0;1;2;3;4;5");
  EXPECT_EQ(backwards(descending), "5;4;3;2;1;0");
}

}  // namespace
}  // namespace steptwin
