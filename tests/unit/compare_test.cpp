// analysis/compare: known errors between two stored runs of the hand-made pipeline.
#include "analysis/compare.h"

#include <gtest/gtest.h>

#include "tests/support/store_helpers.h"

namespace steptwin {
namespace {

using test::SampleRun;

// Times in units of `unit` ns instead of 1 ns; `stretch` of them for compute ops of phase B.
SampleRun scaled(SampleRun run, std::int64_t unit) {
  const auto scale = [unit](SimTime& t) { t = at_ns(ns(t) * unit); };
  for (Span& span : run.trace.spans) scale(span.issue), scale(span.ready), scale(span.start), scale(span.end);
  run.trace.step_time *= unit, run.trace.makespan *= unit;
  return run;
}

struct Pair {
  std::int64_t sim = 0, exec = 0;
};
Pair store_pair(Store& store, const SampleRun& predicted, const SampleRun& measured) {
  RunInfo info = test::sample_info();
  const auto sim = test::store_run(store, predicted, info);
  info.kind = "exec", info.backend = "cpu", info.sim_of_uid = sim.uid;
  return {sim.id, test::store_run(store, measured, info).id};
}

TEST(Compare, an_execution_twice_as_slow_is_an_error_of_minus_a_half) {
  const test::TemporaryFolder folder;
  Store store = test::open_store(folder.file("a.db"));
  const SampleRun sample = test::pipeline_sample();
  const Pair runs = store_pair(store, scaled(sample, 10'000), scaled(sample, 20'000));
  const Comparison c = compare_runs(store, {runs.exec});
  EXPECT_EQ(c.sim_run, runs.sim);
  EXPECT_EQ(c.matched_fraction(), 1);
  EXPECT_EQ(c.matched, static_cast<std::int64_t>(sample.trace.spans.size()));
  EXPECT_DOUBLE_EQ(c.step_time_error(), -0.5);
  EXPECT_DOUBLE_EQ(c.measured_step_ns, 99 * 20'000.0);
  EXPECT_DOUBLE_EQ(c.op_error_median, 0.5);
  EXPECT_DOUBLE_EQ(c.op_error_mean, 0.5);
  EXPECT_DOUBLE_EQ(c.op_error_signed_mean, -0.5);
  EXPECT_EQ(c.apart.ops, 8);  // the messages: 2 units = 40 us
  EXPECT_EQ(c.peak_memory_error, 0);
  ASSERT_FALSE(c.worst.empty());
  EXPECT_EQ(c.worst.front().phase, "B");  // 20 units
  for (const ComparedGroup& group : c.kinds) EXPECT_DOUBLE_EQ(group.signed_error(), -0.5) << group.name;
  ASSERT_EQ(c.stages.size(), 2u);
  EXPECT_EQ(c.stages[0].name, "stage   0");
  EXPECT_EQ(c.stages[0].ops + c.stages[1].ops, c.ranks[0].ops + c.ranks[1].ops);
  for (const ComparedGroup& group : c.stages) EXPECT_DOUBLE_EQ(group.signed_error(), -0.5) << group.name;
}

TEST(Compare, runs_in_either_order_and_a_perfect_prediction) {
  const test::TemporaryFolder folder;
  Store store = test::open_store(folder.file("a.db"));
  const SampleRun sample = scaled(test::pipeline_sample(), 10'000);
  const Pair runs = store_pair(store, sample, sample);
  for (const auto& order : {std::vector{runs.sim, runs.exec}, std::vector{runs.exec, runs.sim}}) {
    const Comparison c = compare_runs(store, order);
    EXPECT_EQ(c.step_time_error(), 0);
    EXPECT_EQ(c.op_error_mean, 0);
  }
}

TEST(Compare, memory_peaks_have_their_size_their_instant_and_their_error) {
  const test::TemporaryFolder folder;
  Store store = test::open_store(folder.file("a.db"));
  const SampleRun predicted = scaled(test::pipeline_sample(), 10'000);
  SampleRun measured = predicted;
  ASSERT_FALSE(measured.trace.peaks.empty());
  for (MemoryPeak& peak : measured.trace.peaks)
    if (peak.curve == Curve::Allocated && peak.rank == RankId(0)) peak.bytes = Bytes(peak.bytes.value * 2), peak.op = OpId(1);
  const Comparison c = compare_runs(store, {store_pair(store, predicted, measured).exec});
  EXPECT_DOUBLE_EQ(c.peak_memory_error, -0.5);
  ASSERT_GE(c.peaks.size(), 2u);
  EXPECT_EQ(c.peaks[0].curve, "allocated");
  EXPECT_EQ(c.peaks[0].measured, 2 * c.peaks[0].predicted);
  EXPECT_NE(c.peaks[0].measured_at, c.peaks[0].predicted_at);
  EXPECT_EQ(c.peaks[1].measured_at, c.peaks[1].predicted_at);
}

TEST(Compare, a_measured_op_without_a_predicted_one_counts_as_unmatched) {
  const test::TemporaryFolder folder;
  Store store = test::open_store(folder.file("a.db"));
  SampleRun predicted = scaled(test::pipeline_sample(), 10'000);
  const SampleRun measured = predicted;
  predicted.trace.spans.pop_back();
  const Pair runs = store_pair(store, predicted, measured);
  const Comparison c = compare_runs(store, {runs.sim, runs.exec});
  EXPECT_EQ(c.unmatched, 1);
  EXPECT_LT(c.matched_fraction(), 1);
}

TEST(Compare, a_folded_prediction_meets_every_measured_rank) {
  const test::TemporaryFolder folder;
  Store store = test::open_store(folder.file("a.db"));
  const SampleRun predicted = scaled(test::folded_sample(2), 10'000);
  SampleRun measured = predicted;  // every rank for itself
  std::vector<Span> spans;
  measured.trace.simulated.clear();
  for (std::uint32_t r = 0; r < measured.trace.stand_in.size(); ++r) {
    for (const Span& span : predicted.trace.spans) {
      if (span.rank != predicted.trace.stand_in[r]) continue;
      spans.push_back(span);
      spans.back().rank = RankId(r);
    }
    measured.trace.stand_in[r] = RankId(r);
    measured.trace.simulated.push_back(RankId(r));
  }
  measured.trace.spans = spans;
  measured.trace.breakdowns.clear();
  const Pair runs = store_pair(store, predicted, measured);
  const Comparison c = compare_runs(store, {runs.sim, runs.exec});
  EXPECT_EQ(c.unmatched, 0);
  EXPECT_EQ(c.matched, static_cast<std::int64_t>(spans.size()));
  EXPECT_EQ(c.step_time_error(), 0);
}

TEST(Compare, refuses_what_cannot_be_compared) {
  const test::TemporaryFolder folder;
  Store store = test::open_store(folder.file("a.db"));
  const SampleRun sample = scaled(test::pipeline_sample(), 10'000);
  const Pair runs = store_pair(store, sample, sample);
  SampleRun other = scaled(test::folded_sample(2), 10'000);
  const Pair others = store_pair(store, other, other);
  EXPECT_THROW(compare_runs(store, {runs.sim}), InputError);                // knows no prediction
  EXPECT_THROW(compare_runs(store, {runs.sim, others.sim}), InputError);    // two predictions
  EXPECT_THROW(compare_runs(store, {runs.sim, others.exec}), InputError);   // different schedules
}

}  // namespace
}  // namespace steptwin
