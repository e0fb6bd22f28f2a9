// The cost models that exist, one row each in cost_models.cpp.
#pragma once

#include <memory>

#include "schedule/machine/given_cost.h"
#include "sim/cost/cost_model.h"

namespace steptwin {

std::unique_ptr<CostModel> analytic_costs(const Machine& machine);                            // roofline + alpha_beta
std::unique_ptr<CostModel> measured_costs(const Machine& machine);                            // the machine's measured tables, else analytic
std::unique_ptr<CostModel> given_costs(const GivenCost& given, const Schedule& schedule);     // stage times of the user
std::unique_ptr<CostModel> stated_costs();                                                    // only Op::given; everything else 0 (schedule texts without a machine)

}  // namespace steptwin
