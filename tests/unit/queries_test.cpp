// The canned queries and the summary: what is stored answers as what was computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "analysis/summary.h"
#include "tests/support/sample_run.h"

namespace steptwin {
namespace {

using testing::ElementsAre;
using testing::Pair;

// A database with the sample, a folded run, a measured run of the sample, and a run that ran out of memory.
class Queries : public testing::Test {
 protected:
  Queries() {
    const test::SampleRun sample = test::pipeline_sample();
    const auto sim = add(sample, test::sample_info());
    add(test::folded_sample(16), test::sample_info());
    RunInfo exec = test::sample_info();
    exec.kind = "exec";
    exec.sim_of_uid = sim.uid;
    add(sample, exec);
    test::SampleRun failed = sample;
    failed.trace.outcome.status = Status::OutOfMemory;
    failed.trace.outcome.text = "out of memory on rank 0";
    add(failed, test::sample_info());
  }
  Store::RunKey add(const test::SampleRun& run, const RunInfo& info) {
    const auto key = store_.begin_run(info);
    store_.finish_run(key, run.schedule, run.digest, run.trace, metrics_of(summarize(run.schedule, run.digest, run.trace, {})));
    return key;
  }
  Table run(const std::string& name, int id) const {
    for (const CannedQuery& query : canned_queries())
      if (query.name == name) return store_.query(query.sql, {std::to_string(id)});
    ADD_FAILURE() << "no query " << name;
    return {};
  }
  // The named columns of a row, joined by blanks.
  static std::string cells(const Table& table, std::size_t row, const std::vector<std::string>& columns) {
    std::string text;
    for (const std::string& column : columns) {
      const auto at = std::find(table.columns.begin(), table.columns.end(), column);
      EXPECT_NE(at, table.columns.end()) << column;
      text += (text.empty() ? "" : " ") + table.rows.at(row).at(static_cast<std::size_t>(at - table.columns.begin())).text;
    }
    return text;
  }
  test::TemporaryFolder folder_;
  Store store_{folder_.file("a.db"), Store::Access::ReadWrite};
};

TEST_F(Queries, AreTheFilesOfTheFolder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SOURCE_DIR "/analysis/queries")) names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  std::vector<std::string> embedded;
  for (const CannedQuery& query : canned_queries()) {
    embedded.push_back(query.name);
    EXPECT_EQ(query.sql, test::read_file(SOURCE_DIR "/analysis/queries/" + query.name + ".sql"));
  }
  EXPECT_EQ(embedded, names);
}

TEST_F(Queries, EachExplainsItselfAndRuns) {
  for (const CannedQuery& query : canned_queries()) {
    EXPECT_TRUE(query.question.ends_with("?")) << query.name << ": the first line is a question";
    EXPECT_NE(query.sql.find("Columns: "), std::string::npos) << query.name;
    const int id = query.name == "predicted_vs_measured" ? 3 : query.name == "why_it_failed" ? 4 : 1;
    const Table table = run(query.name, id);
    EXPECT_FALSE(table.rows.empty()) << query.name;
    EXPECT_TRUE(run(query.name, 999).rows.empty() || query.name == "runs_overview") << query.name;
  }
}

TEST_F(Queries, BubbleByRank) {
  const Table table = run("bubble_by_rank", 1);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(cells(table, 0, {"rank", "stage", "bubble_ns", "step_ns", "bubble_percent"}), "0 0 28 99 28.28");
  EXPECT_EQ(run("bubble_by_rank", 2).rows.size(), 32u) << "every rank of a folded run";
}

TEST_F(Queries, TopOpsAndSlowestSends) {
  EXPECT_EQ(cells(run("top_ops", 1), 0, {"rank", "op", "name", "duration_us"}), "0 5 B 0 0.02");
  const Table sends = run("slowest_sends", 1);
  ASSERT_EQ(sends.rows.size(), 4u);
  EXPECT_EQ(cells(sends, 0, {"name", "communicator", "bytes", "gigabytes_per_second"}), "send 0 pp.fwd 1000 500.0");
}

TEST_F(Queries, ExposedCommunicationWorstFirst) {
  const Table table = run("exposed_communication", 1);
  EXPECT_EQ(cells(table, 0, {"rank", "exposed_us", "transfer_us", "bytes"}), "0 0.006 0.008 4000");
  EXPECT_EQ(cells(table, 1, {"rank", "exposed_us", "transfer_us", "bytes"}), "1 0.002 0.008 4000");
}

TEST_F(Queries, PeakMemoryNamesTheOp) {
  const Table table = run("peak_memory", 1);
  EXPECT_EQ(table.rows.size(), 8u);
  EXPECT_EQ(cells(table, 1, {"rank", "curve", "bytes", "op", "op_name"}), "0 allocated 500 2 F 1");
  EXPECT_TRUE(cells(table, 1, {"largest_gib"}).starts_with("activation")) << "largest first";
}

TEST_F(Queries, WhyItFailed) {
  EXPECT_EQ(cells(run("why_it_failed", 4), 0, {"level", "code", "text"}), "error oom out of memory on rank 0");
}

TEST_F(Queries, PredictedAgainstItselfHasNoError) {
  const Table table = run("predicted_vs_measured", 3);
  for (std::size_t row = 0; row < table.rows.size(); ++row)
    EXPECT_EQ(cells(table, row, {"error_percent", "mean_absolute_error_percent"}), "0.0 0.0");
}

StepFacts facts() {
  StepFacts f;
  f.model_flops = 1200;
  f.tokens = 990;
  f.peak_flops_per_rank = 1e10;
  f.bubble_theory = 1.0 / 3;
  return f;
}

TEST(Summary, NumbersOfTheSampleByHand) {
  const test::SampleRun run = test::pipeline_sample();
  const RunSummary s = summarize(run.schedule, run.digest, run.trace, facts());
  EXPECT_EQ(s.step_time, Duration(99));
  EXPECT_DOUBLE_EQ(*s.bubble_fraction, (28.0 / 99 + 32.0 / 99) / 2);
  EXPECT_DOUBLE_EQ(*s.bubble_rate_makespan, 1 - 60.0 / 99);
  EXPECT_DOUBLE_EQ(*s.bubble_rate_span, 1 - 60.0 / 94);
  EXPECT_DOUBLE_EQ(*s.bubble_theory, 1.0 / 3);
  EXPECT_DOUBLE_EQ(*s.mfu, 1200 / (99e-9 * 2 * 1e10));
  EXPECT_DOUBLE_EQ(*s.tokens_per_second, 1e10);
  ASSERT_EQ(s.peaks.size(), kCurves);
  EXPECT_EQ(s.peak(Curve::Allocated)->rank, RankId(0));
  EXPECT_EQ(s.peak(Curve::Allocated)->bytes, Bytes(500));
  EXPECT_EQ(s.peak(Curve::Allocated)->op_name, "F 1");
  EXPECT_THAT(s.peak(Curve::Allocated)->categories, ElementsAre(Pair("activation", Bytes(400)), Pair("param", Bytes(100))));
  EXPECT_FALSE(s.peak(Curve::Live)->op.valid());
  EXPECT_EQ(s.peak(Curve::Live)->rank, RankId(0)) << "the lowest of equals";
  EXPECT_THAT(s.peak(Curve::Reserved)->categories, ElementsAre());
  ASSERT_EQ(s.ranks.size(), 2u);
  EXPECT_EQ(s.ranks[1].stage, 1);
  EXPECT_EQ(s.ranks[1].step(), Duration(99));
}

TEST(Summary, StoredEqualsComputed) {
  const test::TemporaryFolder folder;
  Store store(folder.file("a.db"), Store::Access::ReadWrite);
  test::SampleRun failed = test::pipeline_sample();
  failed.trace = Trace{};
  failed.trace.outcome.status = Status::Deadlock;
  for (const test::SampleRun& run : {test::pipeline_sample(), test::folded_sample(32), failed}) {
    const RunSummary computed = summarize(run.schedule, run.digest, run.trace, facts());
    const auto key = store.begin_run(test::sample_info());
    store.finish_run(key, run.schedule, run.digest, run.trace, metrics_of(computed));
    EXPECT_EQ(load_summary(store, key.id), computed);
  }
}

TEST(Summary, FoldedRanksWeighAsManyAsTheyAre) {
  test::SampleRun run = test::folded_sample(3);
  for (std::uint32_t r = 3; r < 6; ++r) run.trace.stand_in[r] = RankId(r == 5 ? 0 : 3);  // rank 5 stood for by rank 0: 4 to 2
  const RunSummary s = summarize(run.schedule, run.digest, run.trace, {});
  EXPECT_DOUBLE_EQ(*s.bubble_fraction, (4 * 28.0 + 2 * 32.0) / 6 / 99);
  EXPECT_FALSE(s.mfu || s.tokens_per_second || s.bubble_theory);
}

TEST(Summary, UnequalRanksTakeTheMeanOfTheirRates) {
  test::SampleRun run = test::pipeline_sample();
  run.trace.breakdowns[1].work = Duration(30);
  const RunSummary s = summarize(run.schedule, run.digest, run.trace, {});
  EXPECT_DOUBLE_EQ(*s.bubble_rate_makespan, ((1 - 60.0 / 99) + (1 - 30.0 / 99)) / 2);
}

TEST(Summary, SeveralStepsMeasureOneStep) {
  test::SampleRun run = test::pipeline_sample();
  run.trace.makespan = Duration(3 * 99);
  StepFacts three;
  three.steps = 3;
  EXPECT_DOUBLE_EQ(*summarize(run.schedule, run.digest, run.trace, three).bubble_rate_makespan, 1 - 60.0 / 99);
}

TEST(Summary, UndefinedNumbersAreAbsent) {
  test::SampleRun run = test::pipeline_sample();
  run.trace = Trace{};
  run.trace.outcome.status = Status::Deadlock;
  const RunSummary s = summarize(run.schedule, run.digest, run.trace, facts());
  EXPECT_FALSE(s.bubble_fraction || s.bubble_rate_makespan || s.bubble_rate_span || s.mfu || s.tokens_per_second);
  EXPECT_EQ(s.peak(Curve::Active), nullptr);
  EXPECT_EQ(s.ranks.size(), 2u);
}

}  // namespace
}  // namespace steptwin
