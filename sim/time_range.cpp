#include "sim/time_range.h"

#include <fmt/format.h>

#include <vector>

#include "schedule/base/error.h"
#include "schedule/ir/text.h"

namespace steptwin {
namespace {

constexpr double kMostNs = 4e18;  // less than half of int64: the sum of two ends still fits

double cost_of(const Price& price) { return static_cast<double>(price.duration) + static_cast<double>(price.launch.total); }

// Of the ops of one variant: the sum of the costs, and the dearest op.
struct Total {
  double ns = 0, dearest_ns = -1;
  std::uint32_t dearest = 0;  // local
};

Total total_of(const Pricing& pricing, const std::vector<OpNode>& nodes) {
  Total total;
  for (std::uint32_t i = 0; i + 1 < nodes.size(); ++i) {
    const double cost = cost_of(pricing.prices[nodes[i].price]);
    total.ns += cost;
    if (cost <= total.dearest_ns) continue;
    total.dearest_ns = cost;
    total.dearest = i;
  }
  return total;
}

}  // namespace

void check_time_range(const Schedule& schedule, const Matching& matching, const Pricing& pricing, std::uint32_t steps) {
  std::vector<Total> totals;
  for (const auto& nodes : pricing.nodes) totals.push_back(total_of(pricing, nodes));
  double sum = 0;
  std::uint32_t worst = 0;
  for (std::uint32_t r = 0; r < pricing.variant.size(); ++r) {
    const Total& total = totals[pricing.variant[r]];
    sum += total.ns * steps;
    if (total.dearest_ns > totals[pricing.variant[worst]].dearest_ns) worst = r;
  }
  if (sum <= kMostNs) return;
  const Total& total = totals[pricing.variant[worst]];
  const Program& program = schedule.programs[matching.tables[matching.ranks[worst].tables].program.value];
  Diagnostic problem;
  problem.code = "TIME";
  problem.text = fmt::format("the run could take {:.1e} s, longer than the clock can count", sum * 1e-9);
  problem.details.push_back(fmt::format("the longest op takes {:.1e} s: `{}`", total.dearest_ns * 1e-9,
                                        print_op(schedule, OpId(program.first_op.value + total.dearest))));
  problem.help = "check the rates and latencies of the machine, the stated times, and --steps";
  throw InputError(problem);
}

}  // namespace steptwin
