// Scenario text -> compile -> costs -> simulate -> summary: the whole way, as the command line goes it, for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/summary.h"
#include "schedule/scenario.h"
#include "sim/simulate.h"

namespace steptwin::test {

struct Rehearsal {
  Scenario scenario;
  Schedule schedule;
  Trace trace;
  RunSummary summary;
};

Rehearsal rehearse(const Scenario& scenario, const SimulateOptions& options = {});
Rehearsal rehearse(const std::string& scenario_text, const std::vector<Override>& overrides = {}, const SimulateOptions& options = {});

// A small GPT of one layer a stage (the first stage also embeds, the last one also has the head) with given stage times, in ns.
struct GivenPipeline {
  std::string order = "1f1b";
  std::int64_t p = 1, m = 1;
  std::int64_t forward_ns = 1000, input_grad_ns = 1000, weight_grad_ns = 1000, hop_ns = 0, optimizer_ns = 0;
  std::string p2p = "lanes", recompute = "none";
  std::int64_t dp = 1, layers_per_stage = 1;
  bool tied = false;
};
std::string scenario_text(const GivenPipeline& pipeline);
Rehearsal rehearse(const GivenPipeline& pipeline, const SimulateOptions& options = {});
// The step time alone, in ns: much faster, for many cases.
std::int64_t step_ns(const GivenPipeline& pipeline);

// Rows of a file of tests/data without its header line, split at commas.
std::vector<std::vector<std::string>> csv_rows(const std::string& path);

}  // namespace steptwin::test
