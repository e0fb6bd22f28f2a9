// Scenario -> Schedule: orders, visits, mechanisms (DESIGN 4).
#pragma once

#include <vector>

#include "schedule/ir/schedule.h"
#include "schedule/orders/orders.h"
#include "schedule/scenario.h"

namespace steptwin {

// Times for decisions that need them (none of today's orders does); filled by the caller from a cost model.
struct StageCosts {
  std::vector<Duration> forward, input_grad, weight_grad;  // [stage]
};

// What the scenario asks of its order's table row.
OrderOptions order_options(const Scenario& scenario);
// The compute actions of the scenario's pipeline (its order's table row, or its CSV file).
ActionGrid scenario_actions(const Scenario& scenario);
// Layers of each stage: explicit list, or the remainder to the first stages.
std::vector<std::int64_t> stage_layers(const Scenario& scenario, std::int32_t stages);
// About how many ops compile() will make, without making them: to refuse what no memory holds.
double rough_op_count(const Scenario& scenario);
Schedule compile(const Scenario& scenario, const StageCosts& costs = {});

}  // namespace steptwin
