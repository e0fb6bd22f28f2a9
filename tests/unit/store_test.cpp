// The store: round trips, views, names of runs, queries.
#include "traces/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "schedule/ir/text.h"
#include "tests/support/store_helpers.h"

namespace steptwin {
namespace {

using test::input_error_of;
using test::open_store;
using test::rows;
using test::store_run;
using test::TemporaryFolder;
using testing::HasSubstr;

TEST(Store, SpansComeBackAsTheyWere) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  const test::SampleRun run = test::pipeline_sample();
  const auto key = store_run(store, run);
  std::vector<Span> read;
  store.for_each("SELECT step, rank, op, issue_ns, ready_ns, start_ns, end_ns FROM spans WHERE run_id = ?1 ORDER BY rank, step, op",
                 {std::to_string(key.id)}, [&](const Row& row) {
                   const auto id = [&](int c) { return static_cast<std::uint32_t>(row.integer(c)); };
                   read.push_back({id(0), RankId(id(1)), OpId(id(2)), at_ns(row.integer(3)), at_ns(row.integer(4)), at_ns(row.integer(5)),
                                   at_ns(row.integer(6))});
                 });
  ASSERT_EQ(read.size(), run.trace.spans.size());
  Trace again = run.trace;
  again.spans = read;
  EXPECT_EQ(again.digest(), run.trace.digest());
  EXPECT_EQ(rows(store, "SELECT trace_digest, schedule_digest FROM runs"),
            (std::vector<std::string>{run.trace.digest() + " " + run.digest}));
}

TEST(Store, ViewsShowTheSample) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  store_run(store, test::pipeline_sample());
  EXPECT_EQ(rows(store, "SELECT id, kind, scenario, status, step_time_ns, sim_of_uid, ranks, ops, bubble_fraction FROM runs"),
            (std::vector<std::string>{"1 sim sample ok 99 - 2 18 0.25"}));
  EXPECT_EQ(rows(store,
                 "SELECT run_id, step, rank, lane, op, kind, phase, stage, chunk, micro_batch, layer, bytes, start_ns, end_ns FROM spans "
                 "WHERE op IN (1, 5, 8)"),
            (std::vector<std::string>{"1 0 0 send_fwd 1 send  0 0 0 - 1000 10 12", "1 0 0 compute 5 compute B 0 0 0 0 0 44 64",
                                      "1 0 0 compute 8 compute U 0 0 - - 0 94 99"}));
  EXPECT_EQ(rows(store, "SELECT rank, stage, compute_ns, exposed_communication_ns, bubble_ns, other_ns, step_ns FROM rank_summary"),
            (std::vector<std::string>{"0 0 60 6 28 5 99", "1 1 60 2 32 5 99"}));
  EXPECT_EQ(rows(store, "SELECT rank, space, curve, bytes, at_ns, op, op_name FROM memory_peak WHERE curve IN ('allocated', 'live')"),
            (std::vector<std::string>{"0 device allocated 500 10 2 F 1", "0 device live 100 0 - -", "1 device allocated 300 10 10 F 0",
                                      "1 device live 100 0 - -"}));
  EXPECT_EQ(rows(store, "SELECT category, bytes FROM memory_peak_category WHERE rank = 0 AND curve = 'allocated'"),
            (std::vector<std::string>{"activation 400", "param 100"}));
  EXPECT_EQ(rows(store, "SELECT at_ns, bytes FROM memory_samples WHERE rank = 1 AND category = 'total' ORDER BY seq"),
            (std::vector<std::string>{"0 100", "10 300", "94 100"}));
  EXPECT_EQ(rows(store, "SELECT rank, communicator, kind, n, bytes, wait_ns, transfer_ns FROM comm_summary WHERE rank = 0"),
            (std::vector<std::string>{"0 pp.bwd recv 2 2000 0 4", "0 pp.fwd send 2 2000 0 4"}));
  EXPECT_EQ(rows(store, "SELECT kind, phase, stage, n, min_ns, avg_ns, max_ns, sum_ns FROM op_stats WHERE phase = 'B' ORDER BY stage"),
            (std::vector<std::string>{"compute B 0 2 20 20.0 20 40", "compute B 1 2 20 20.0 20 40"}));
}

// Two gathers in one group, ready at 10: the first starts at 12, the other at 15, both end at 40. They wait 2 and move data for 28 ns.
TEST(Store, CommunicationOfAGroupTakesItsTimeOnce) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  test::SampleRun run;
  run.schedule = parse_schedule(R"(mesh dp 2
comm c axes dp
program p ranks all
  lane n network
  buffer x 8B resident
  buffer y 16B
  buffer z 16B
  0 gather on c read x write y lane n group 0
  1 gather on c read x write z lane n group 0
)",
                                "t");
  run.digest = "of two gathers";
  run.trace.stand_in = {RankId(0), RankId(0)};
  run.trace.simulated = {RankId(0)};
  run.trace.spans = {{0, RankId(0), OpId(0), at_ns(9), at_ns(10), at_ns(12), at_ns(40)},
                     {0, RankId(0), OpId(1), at_ns(9), at_ns(10), at_ns(15), at_ns(40)}};
  store_run(store, run);
  EXPECT_EQ(rows(store, "SELECT rank, communicator, kind, n, bytes, wait_ns, transfer_ns FROM comm_summary"),
            (std::vector<std::string>{"0 c gather 2 32 2 28", "1 c gather 2 32 2 28"}));
}

// The columns that DESIGN and the issue promise, by name.
TEST(Store, PromisedColumnsExist) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  for (const char* sql :
       {"SELECT id, uid, kind, scenario, status, schedule_digest, trace_digest, step_time_ns, sim_of_uid FROM runs",
        "SELECT run_id, step, rank, lane, op, kind, phase, stage, chunk, micro_batch, layer, bytes, issue_ns, ready_ns, start_ns, end_ns "
        "FROM spans",
        "SELECT run_id, rank, stand_in, stage, compute_ns, exposed_communication_ns, bubble_ns, other_ns, step_ns, bubble_fraction FROM "
        "rank_summary",
        "SELECT run_id, rank, space, curve, bytes, at_ns, op FROM memory_peak",
        "SELECT run_id, rank, space, curve, category, bytes FROM memory_peak_category",
        "SELECT run_id, rank, space, curve, category, at_ns, bytes FROM memory_samples", "SELECT run_id, rank, bubble_ns FROM bubble",
        "SELECT exec_run, sim_run, step, rank, op, predicted_ns, measured_ns, error_percent FROM predicted_vs_measured",
        "SELECT run_id, kind, phase, stage, n, sum_ns FROM op_stats", "SELECT run_id, rank, communicator, kind, n, bytes FROM comm_summary",
        "SELECT schedule_digest, op, program, lane, kind FROM ops", "SELECT run_id, level, text FROM diagnostics",
        "SELECT run_id, name, value FROM metrics"})
    EXPECT_NO_THROW(store.query(sql)) << sql;
}

TEST(Store, FoldedRunShowsSpansOnceAndEveryRank) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  store_run(store, test::folded_sample(64));
  EXPECT_EQ(rows(store, "SELECT count(*), count(DISTINCT rank) FROM spans"), (std::vector<std::string>{"18 2"}));
  EXPECT_EQ(rows(store, "SELECT count(*), sum(compute_ns), sum(bubble_ns) FROM rank_summary"), (std::vector<std::string>{"128 7680 3840"}));
  EXPECT_EQ(rows(store, "SELECT rank, stand_in, stage, coordinates, bubble_ns FROM rank_summary WHERE rank IN (63, 127)"),
            (std::vector<std::string>{"63 0 0 pp0 dp63 28", "127 64 1 pp1 dp63 32"}));
  EXPECT_EQ(rows(store, "SELECT count(*), max(bytes) FROM memory_peak WHERE curve = 'allocated'"), (std::vector<std::string>{"128 500"}));
  EXPECT_EQ(rows(store, "SELECT count(*) FROM memory_peak_category WHERE rank = 127"), (std::vector<std::string>{"5"}));
  EXPECT_EQ(rows(store, "SELECT count(DISTINCT rank) FROM comm_summary"), (std::vector<std::string>{"128"}));
}

TEST(Store, OpsAreStoredOncePerSchedule) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  const test::SampleRun run = test::pipeline_sample();
  store_run(store, run);
  store_run(store, run);
  EXPECT_EQ(rows(store, "SELECT count(*) FROM op"), (std::vector<std::string>{"18"}));
  EXPECT_EQ(rows(store, "SELECT count(*) FROM span"), (std::vector<std::string>{"36"}));
  EXPECT_EQ(rows(store, "SELECT count(*) FROM scenario"), (std::vector<std::string>{"1"}));
}

// A measured run of the unfolded mesh against a folded prediction of two steps: the last predicted step counts.
TEST(Store, PredictedIsJoinedWithMeasuredThroughTheStandIn) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  test::SampleRun run = test::folded_sample(2);
  test::SampleRun predicted = run;
  for (Span span : run.trace.spans) {
    span.step = 1;
    if (span.op.value == 5) span.end += Duration(5);  // the last step differs from the first
    predicted.trace.spans.push_back(span);
  }
  RunInfo sim = test::sample_info();
  sim.steps = 2;
  const auto sim_key = store_run(store, predicted, sim);
  test::SampleRun measured = run;
  measured.trace.spans.clear();
  for (const Span& span : run.trace.spans)
    for (const std::uint32_t replica : {0u, 1u}) {
      Span copy = span;
      copy.rank = RankId(span.rank.value + replica);
      copy.end += Duration(replica);
      measured.trace.spans.push_back(copy);
    }
  measured.trace.stand_in = {RankId(0), RankId(1), RankId(2), RankId(3)};
  RunInfo exec = test::sample_info();
  exec.kind = "exec";
  exec.sim_of_uid = sim_key.uid;
  const auto exec_key = store_run(store, measured, exec);
  EXPECT_EQ(rows(store, "SELECT exec_run, sim_run, count(*), count(DISTINCT rank) FROM predicted_vs_measured"),
            (std::vector<std::string>{std::to_string(exec_key.id) + " " + std::to_string(sim_key.id) + " 36 4"}));
  EXPECT_EQ(
      rows(store, "SELECT rank, name, predicted_ns, measured_ns, error_percent FROM predicted_vs_measured WHERE op = 5 ORDER BY rank"),
      (std::vector<std::string>{"0 B 0 25 20 25.0", "1 B 0 25 21 19.047619047619047"}));
  RunInfo overflowed = exec;
  overflowed.guard_value = false;  // took the other branch: not compared
  store_run(store, measured, overflowed);
  EXPECT_EQ(rows(store, "SELECT count(DISTINCT exec_run) FROM predicted_vs_measured"), (std::vector<std::string>{"1"}));
}

TEST(Store, FailedRunsKeepTheirReasons) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  test::SampleRun run = test::pipeline_sample();
  Outcome& outcome = run.trace.outcome;
  outcome = {Status::OutOfMemory,
             "out of memory on rank 1",
             {"params 1.0 GiB", "activations 2.0 GiB"},
             RankId(1),
             OpId(10),
             Bytes(30),
             Bytes(100),
             Bytes(80)};
  const auto oom = store_run(store, run);
  outcome = {Status::Deadlock, "2 ranks wait for each other", {"rank 0 waits in send", "rank 1 waits in send"}, {}, {}, {}, {}, {}};
  const auto hang = store_run(store, run);
  const auto broken = store.begin_run(test::sample_info());
  store.mark(broken, Status::Error, "the disk is gone");
  EXPECT_EQ(
      rows(store, "SELECT id, status, status_text FROM runs ORDER BY id"),
      (std::vector<std::string>{"1 oom out of memory on rank 1", "2 deadlock 2 ranks wait for each other", "3 error the disk is gone"}));
  EXPECT_EQ(
      rows(store, "SELECT level, code, rank, op, requested_bytes, capacity_bytes, in_use_bytes, text FROM diagnostics WHERE run_id = ?1",
           {std::to_string(oom.id)}),
      (std::vector<std::string>{"error oom 1 10 30 100 80 out of memory on rank 1", "detail oom 1 10 30 100 80 params 1.0 GiB",
                                "detail oom 1 10 30 100 80 activations 2.0 GiB"}));
  EXPECT_EQ(rows(store, "SELECT level, rank, capacity_bytes, text FROM diagnostics WHERE run_id = ?1", {std::to_string(hang.id)}),
            (std::vector<std::string>{"error - - 2 ranks wait for each other", "detail - - rank 0 waits in send",
                                      "detail - - rank 1 waits in send"}));
}

TEST(Store, RemoveTakesEverythingOfARunAndKeepsTheRest) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  const test::SampleRun run = test::pipeline_sample();
  const auto first = store_run(store, run), second = store_run(store, run);
  store.remove_run(first.id);
  EXPECT_EQ(rows(store, "SELECT count(*), (SELECT count(*) FROM op), (SELECT count(*) FROM span) FROM run"),
            (std::vector<std::string>{"1 18 18"}));
  store.remove_run(second.id);
  for (const char* table : {"run", "op", "span", "memory_sample", "peak", "peak_category", "breakdown", "rank", "metric", "schedule",
                            "program", "lane", "schedule_rank", "communicator", "scenario", "diag"})
    EXPECT_EQ(rows(store, std::string("SELECT count(*) FROM ") + table), (std::vector<std::string>{"0"})) << table;
}

TEST(Store, ResolvesRunsByManyNames) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  EXPECT_THAT(input_error_of([&] { store.resolve("@last"); }), HasSubstr("holds no runs yet"));
  const test::SampleRun run = test::pipeline_sample();
  RunInfo exec = test::sample_info();
  exec.kind = "exec";
  exec.label = "baseline";
  const auto first = store_run(store, run), second = store_run(store, run, exec);
  store.begin_run(test::sample_info());  // still running: no one's last
  EXPECT_EQ(store.resolve("@last"), second.id);
  EXPECT_EQ(store.resolve("@last-sim"), first.id);
  EXPECT_EQ(store.resolve("@last-exec"), second.id);
  EXPECT_EQ(store.resolve("1"), first.id);
  EXPECT_EQ(store.resolve("baseline"), second.id);
  EXPECT_EQ(store.resolve(first.uid), first.id);
  EXPECT_EQ(store.resolve(second.uid.substr(0, 12)), second.id);
  EXPECT_THAT(input_error_of([&] { store.resolve("baselin"); }),
              testing::AllOf(HasSubstr("RUN: there is no run 'baselin'"), HasSubstr("did you mean 'baseline'?")));
  EXPECT_THAT(input_error_of([&] { store.resolve("@lats"); }), HasSubstr("did you mean '@last'?"));
  EXPECT_THAT(input_error_of([&] { store.resolve("999"); }), HasSubstr("there is no run '999'"));
  store_run(store, run, exec);
  EXPECT_THAT(input_error_of([&] { store.resolve("baseline"); }), HasSubstr("means 2 runs: 2, 4"));
}

TEST(Store, QueryOnlyReads) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  store_run(store, test::pipeline_sample());
  const std::string other = folder.file("other.db");
  for (const std::string sql : {"DELETE FROM span", "DROP VIEW runs", "UPDATE run SET label = 'x'", "CREATE TEMP TABLE t(a)",
                                "PRAGMA journal_mode = DELETE", "PRAGMA user_version = 5", "BEGIN", "VACUUM", "SELECT load_extension('x')"})
    EXPECT_THAT(input_error_of([&] { store.query(sql); }), HasSubstr("SQL: the query failed")) << sql;
  EXPECT_THAT(input_error_of([&] { store.query("ATTACH '" + other + "' AS o"); }), HasSubstr("queries only read"));
  EXPECT_THAT(input_error_of([&] { store.query("VACUUM INTO '" + other + "'"); }), HasSubstr("SQL"));
  EXPECT_FALSE(std::filesystem::exists(other));
  EXPECT_EQ(rows(store, "SELECT count(*) FROM span"), (std::vector<std::string>{"18"}));
  store_run(store, test::pipeline_sample());  // writing goes on
}

TEST(Store, QueryErrorsAreTheUsers) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  EXPECT_THAT(input_error_of([&] { store.query("SELECT * FROM nowhere"); }), HasSubstr("no such table: nowhere"));
  EXPECT_THAT(input_error_of([&] { store.query("SELEC 1"); }), HasSubstr("syntax error"));
  EXPECT_THAT(input_error_of([&] { store.query(""); }), HasSubstr("it is empty"));
  EXPECT_THAT(input_error_of([&] { store.query("SELECT 1; SELECT 2"); }), HasSubstr("more than one statement"));
  EXPECT_EQ(rows(store, "SELECT 1; -- and no more\n ;"), (std::vector<std::string>{"1"}));
  EXPECT_THAT(input_error_of([&] { store.query("SELECT json_extract('{', '$')"); }), HasSubstr("malformed JSON"));
}

TEST(Store, QueryParametersAndPrecision) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  EXPECT_EQ(rows(store, "SELECT typeof(?1), typeof(?2), typeof(?3), typeof(?4)", {"12", "1.5", "007", "it's"}),
            (std::vector<std::string>{"integer real text text"}));
  EXPECT_EQ(rows(store, "SELECT 0.1 + 0.2, 9007199254740993, NULL, 2.0, 1e300"),
            (std::vector<std::string>{"0.30000000000000004 9007199254740993 - 2.0 1e+300"}));
  EXPECT_EQ(rows(store, "SELECT value FROM (SELECT 1 AS value UNION ALL SELECT 2) LIMIT ?1", {"1"}), (std::vector<std::string>{"1"}));
  EXPECT_EQ(rows(store, "SELECT key FROM json_each('[5,6]')"), (std::vector<std::string>{"0", "1"}));
}

TEST(Store, LongQueriesAreStopped) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  const std::string endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";
  store.set_query_limits(std::chrono::milliseconds(50));
  EXPECT_THAT(input_error_of([&] { store.query(endless); }), testing::AllOf(HasSubstr("interrupted"), HasSubstr("more time")));
  std::atomic<bool> stop{true};
  store.set_query_limits(std::chrono::milliseconds(0), &stop);
  EXPECT_THAT(input_error_of([&] { store.query(endless); }), HasSubstr("interrupted"));
}

// 16,384 ranks that are stood for by two: fast to write and to read.
TEST(Store, ManyFoldedRanks) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  store_run(store, test::folded_sample(8192));
  EXPECT_EQ(rows(store, "SELECT count(*), sum(bubble_ns) FROM rank_summary WHERE run_id = 1"), (std::vector<std::string>{"16384 491520"}));
  EXPECT_EQ(rows(store, "SELECT count(*) FROM memory_peak WHERE run_id = 1"), (std::vector<std::string>{"65536"}));
}

TEST(TraceDigest, SeesEveryFieldAndNotTheOrder) {
  const Trace trace = test::pipeline_sample().trace;
  Trace reversed = trace;
  std::reverse(reversed.spans.begin(), reversed.spans.end());
  EXPECT_EQ(reversed.digest(), trace.digest());
  EXPECT_EQ(trace.digest().size(), 16u);
  for (int field = 0; field < 7; ++field) {
    Trace changed = trace;
    Span& s = changed.spans[3];
    switch (field) {
      case 0:
        s.step += 1;
        break;
      case 1:
        s.rank.value += 7;
        break;
      case 2:
        s.op.value += 100;
        break;
      case 3:
        s.issue += Duration(1);
        break;
      case 4:
        s.ready += Duration(1);
        break;
      case 5:
        s.start += Duration(1);
        break;
      default:
        s.end += Duration(1);
        break;
    }
    EXPECT_NE(changed.digest(), trace.digest()) << field;
  }
  Trace summary = trace;
  summary.spans.clear();
  Trace other = summary;
  other.peaks[0].bytes += Bytes(1);
  EXPECT_NE(other.digest(), summary.digest());
  other = summary;
  other.breakdowns[1].other += Duration(1);
  EXPECT_NE(other.digest(), summary.digest());
}

}  // namespace
}  // namespace steptwin
