// A finished simulation and its faces: JSON (schema steptwin.run/1, stable keys, byte-identical for the same scenario, seed and version
// except "volatile"), the card for people, a table of ranks for csv and md.
#pragma once

#include <optional>
#include <string>

#include "analysis/summary.h"
#include "cli/expect.h"
#include "cli/session.h"
#include "cli/subject.h"
#include "cli/table.h"
#include "sim/simulate.h"

namespace steptwin {

struct SimulationRun {
  Subject subject;
  SimulateOptions options;
  std::string cost_model;
  std::int64_t seed = 1;
  Trace trace;
  RunSummary summary;
  double wall_seconds = 0;
  std::string started_utc;           // of the process: volatile
  std::optional<Store::RunKey> key;  // none with --no-db
  std::string database;              // empty with --no-db
};

// What the schedule does not say: flops and tokens of a step, peak flops, closed form of the bubble.
StepFacts step_facts(const Subject& subject, std::uint32_t steps);

// The numbers of "summary", fixed order. Absent ones are left out; summary_keys has all.
NamedNumbers summary_numbers(const RunSummary& summary);
std::vector<std::string> summary_keys();

enum class JsonLayout { Pretty, OneLine };
std::string run_json(const SimulationRun& run, JsonLayout layout);
std::string run_card(const SimulationRun& run, const Session& session);
Table rank_table(const SimulationRun& run);

// One line of phases over time for each rank, `width` columns: "rank 0 |FFFF....BBFF|". Empty when the trace has no spans.
std::string phase_strips(const SimulationRun& run, std::size_t width, std::size_t most_ranks);

}  // namespace steptwin
