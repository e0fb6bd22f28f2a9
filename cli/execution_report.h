// What an execution showed, for people and for machines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/run_report.h"
#include "exec/backend.h"
#include "exec/gradient_check.h"

namespace steptwin {

// Lengths of the measured steps: distances of the ends of consecutive steps (over all ranks); of the first one from its first start.
std::vector<Duration> measured_steps(const Trace& trace, std::uint32_t steps);

struct ExecutionRun {
  std::string name, mode, backend;
  std::uint32_t warm_up = 0, steps = 1;
  SimulationRun prediction;
  ExecutionResult result;
  RunSummary summary;                // of the execution
  std::vector<Duration> step_times;  // measured_steps
  std::optional<Store::RunKey> key;
  std::optional<GradientCheck> check;
};

std::int64_t clock_uncertainty(const std::vector<ProcessNote>& processes);  // the largest, ns
std::string execution_json(const ExecutionRun& run, JsonLayout layout);
std::string execution_card(const ExecutionRun& run, const Session& session);

}  // namespace steptwin
