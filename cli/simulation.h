// Runs a subject: chooses its cost model, shows progress, heeds the stop flag.
#pragma once

#include <memory>

#include "cli/options.h"
#include "cli/session.h"
#include "cli/subject.h"
#include "sim/cost/cost_model.h"
#include "sim/simulate.h"

namespace steptwin {

// Given costs of the scenario, else measured (of a calibrated machine) or analytic costs of the machine, else the durations stated in the
// schedule text.
std::unique_ptr<CostModel> cost_model_of(const Subject& subject);

// --steps, --warmup: at most 10,000.
std::uint32_t repetitions(const Options& options, const char* name, std::int64_t fallback);

// --engine, --fold, --trace, --steps (else the scenario's) and the scenario's overflow assumption.
SimulateOptions simulate_options(const Options& options, const Subject& subject);

Trace run_simulation(const Subject& subject, const CostModel& costs, SimulateOptions options, const Options& words, const Session& session);

}  // namespace steptwin
