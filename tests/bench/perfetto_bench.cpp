// Speed of the Perfetto export: a stored run of 1 M slices, with its arrows and counters, in less than 3 s (issue 2).
#include <chrono>
#include <cstdio>

#include "analysis/export_perfetto.h"
#include "tests/support/sample_run.h"

using namespace steptwin;

int main() {
  const test::SampleRun run = test::large_sample(64, 15625);
  const test::TemporaryFolder folder;
  Store store(folder.file("bench.db"), Store::Access::ReadWrite);
  const auto key = store.begin_run(test::sample_info());
  store.finish_run(key, run.schedule, run.digest, run.trace, {});
  double best = 1e9;
  std::size_t bytes = 0;
  PerfettoResult result;
  for (int i = 0; i < 3; ++i) {
    bytes = 0;
    const auto begin = std::chrono::steady_clock::now();
    result = export_perfetto(store, key.id, [&](std::string_view part) { bytes += part.size(); });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::printf("perfetto: %llu slices, %llu arrows, %llu counter values, %.1f MB in %.2f s (limit 3 s) %s\n",
              static_cast<unsigned long long>(result.slices), static_cast<unsigned long long>(result.flows),
              static_cast<unsigned long long>(result.counter_values), static_cast<double>(bytes) / 1e6, best, best < 3 ? "ok" : "TOO SLOW");
  return best < 3 ? 0 : 1;
}
