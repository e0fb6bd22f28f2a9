// The table of cost models.
#include "sim/cost/cost_models.h"

#include "sim/cost/analytic.h"
#include "sim/cost/given.h"
#include "sim/cost/measured.h"
#include "sim/cost/stated.h"

namespace steptwin {

std::unique_ptr<CostModel> analytic_costs(const Machine& machine) { return std::make_unique<AnalyticCosts>(machine); }
std::unique_ptr<CostModel> measured_costs(const Machine& machine) { return std::make_unique<MeasuredCosts>(machine); }
std::unique_ptr<CostModel> given_costs(const GivenCost& given, const Schedule& schedule) {
  return std::make_unique<GivenCosts>(given, schedule);
}
std::unique_ptr<CostModel> stated_costs() { return std::make_unique<StatedCosts>(); }

}  // namespace steptwin
