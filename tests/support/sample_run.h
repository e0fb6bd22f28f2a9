// Small runs made by hand, whose every number is known, for tests of what reads traces.
#pragma once

#include <string>

#include "schedule/ir/schedule.h"
#include "traces/store.h"
#include "traces/trace.h"

namespace steptwin::test {

struct SampleRun {
  Schedule schedule;
  std::string digest;
  Trace trace;
};

// GPipe order of two stages and two micro-batches, per rank F0 F1 B0 B1 adam, F = 10 ns, B = 20 ns, message 2 ns, adam 5 ns:
//   rank 0   F0 0-10   F1 10-20   B0 44-64   B1 74-94   adam 94-99    sends 10-12, 20-22   receives 42-44, 72-74
//   rank 1   F0 12-22  B0 22-42   F1 42-52   B1 52-72   adam 72-77    receives 10-12, 20-22   sends 42-44, 72-74
// Step 99 ns. Rank 0: compute 60, exposed 6, other 5, bubble 28. Rank 1: compute 60, exposed 2, other 5, bubble 32.
SampleRun pipeline_sample();

// The same on pp2 x dp`replicas`, folded: ranks of dp > 0 are stood for by those of dp 0. Row-major, so rank = pp * replicas + dp.
SampleRun folded_sample(std::uint32_t replicas);

// `ranks` ranks in a ring of programs of their own, each with `ops_per_rank` ops (a third of them messages to the next rank), all ranks
// recorded; every 8th op has a memory sample. For speed.
SampleRun large_sample(std::uint32_t ranks, std::uint32_t ops_per_rank);

RunInfo sample_info();

// A folder of its own under the temporary directory, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path);

}  // namespace steptwin::test
