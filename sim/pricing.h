// Prices every op of every simulated rank once, before the engine runs: durations and host launch costs in ns.
// Ranks whose channels lie alike on the machine share one table.
//
// Collectives of one group, kind and communicator are one launch (ncclGroupStart/End) and share its links. Where transfers do not slow each
// other in the engine, the k-th of them takes as long as one of the bytes of the first k, so that the group ends as if it were one
// transfer. Where links or slots are shared the engine does this itself, and each is priced alone.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "schedule/ir/loop.h"
#include "schedule/ir/matching.h"
#include "sim/cost/cost_model.h"

namespace steptwin {

struct Price {
  std::int64_t duration = 0;
  LaunchNs launch;
  auto operator<=>(const Price&) const = default;
};

// Where the durations of the simulated ranks' ops come from; host waits and guarded-off ops are not counted.
struct Coverage {
  std::array<std::uint64_t, 4> ops{};                          // [Provenance]
  std::map<std::string, std::uint64_t, std::less<>> below;     // "compute F attn" -> ops with a provenance weaker than the model promises
};

// Few prices differ, so OpNode::price is an index into the distinct ones.
struct Pricing {
  std::vector<Price> prices;
  std::vector<std::vector<OpNode>> nodes;  // [variant]: the nodes of its tables, priced
  std::vector<std::uint32_t> variant;      // [simulated rank]
  Coverage coverage;

  const OpNode* of_rank(std::uint32_t rank) const { return nodes[variant[rank]].data(); }
  const Price& of(std::uint32_t rank, std::uint32_t op) const { return prices[of_rank(rank)[op].price]; }
};

enum class GroupPricing : std::uint8_t { Together, Alone };

// `guard_value` false: guarded ops take no time.
Pricing price(const Schedule& schedule, const Matching& matching, const CostModel& costs, bool guard_value,
              GroupPricing groups = GroupPricing::Together);

}  // namespace steptwin
