// Speed of storing: how many spans a second finish_run takes, a new schedule included, with the commit and the statistics; and again
// when the schedule is already known and the database holds runs.
// Prints one line a measure and fails when a rate is below its floor (issue 2: insert >= 500 k spans/s, with indexes and commit >= 200 k).
#include <chrono>
#include <cstdio>
#include <ctime>

#include "tests/support/sample_run.h"
#include "traces/database.h"
#include "traces/store_impl.h"

using namespace steptwin;

namespace {

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu = std::clock();
  work();
  std::printf("  [%.2f s of CPU] ", static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool report(const char* what, double spans, double seconds, double floor) {
  const double rate = spans / seconds;
  std::printf("%-62s %8.0f k spans/s (floor %.0f k) %s\n", what, rate / 1e3, floor / 1e3, rate >= floor ? "ok" : "TOO SLOW");
  return rate >= floor;
}

}  // namespace

int main() {
  const test::SampleRun run = test::large_sample(64, 15625);
  const auto spans = static_cast<double>(run.trace.spans.size());
  const test::TemporaryFolder folder;
  bool ok = true;
  Trace only_spans;
  only_spans.spans = run.trace.spans;
  only_spans.stand_in = run.trace.stand_in;
  { Store creates(folder.file("insert.db"), Store::Access::ReadWrite); }
  Database database(folder.file("insert.db"), Database::Mode::Create);
  database.execute("PRAGMA synchronous = NORMAL; PRAGMA cache_size = -65536");
  {
    Transaction transaction(database);
    ok &= report("store: insert (before commit)", spans, seconds_of([&] { store_trace(database, 1, run.schedule, only_spans); }), 500e3);
    transaction.commit();
  }
  Store store(folder.file("bench.db"), Store::Access::ReadWrite);
  for (const char* what : {"store: new schedule, samples, keys, commit, statistics",
                           "store: known schedule, samples, keys, commit, statistics", "store: the same into a database of two runs"}) {
    const auto key = store.begin_run(test::sample_info());
    ok &= report(what, spans, seconds_of([&] { store.finish_run(key, run.schedule, run.digest, run.trace, {}); }), 200e3);
  }
  std::printf("store: %.0f spans in one run\n", spans);
  return ok ? 0 : 1;
}
