#include "exec/present.h"

#include <algorithm>

namespace steptwin {

Matching present_part(const Matching& whole, const std::vector<RankId>& present) {
  std::vector<std::uint32_t> index(whole.ranks.size(), kElsewhere);
  const auto moved = [&](std::uint32_t rank) { return rank == Counterpart::kNobody ? rank : index[rank]; };
  Matching part;
  part.tables = whole.tables;
  for (std::uint32_t r = 0; r < whole.ranks.size(); ++r) {
    if (std::find(present.begin(), present.end(), whole.ranks[r].rank) == present.end()) continue;
    index[r] = static_cast<std::uint32_t>(part.ranks.size());
    part.ranks.push_back(whole.ranks[r]);
  }
  for (SimRank& rank : part.ranks)
    for (std::size_t c = 0; c < rank.counterparts.size(); ++c)
      if (!part.tables[rank.tables].channels[c].collective) rank.counterparts[c].rank = moved(rank.counterparts[c].rank);
  for (const Instance& instance : whole.instances) {
    part.instances.push_back({instance.comm, {}});
    for (const InstanceMember& member : instance.members)
      if (const std::uint32_t r = moved(member.rank); r != kElsewhere) part.instances.back().members.push_back({r, member.channel});
  }
  for (const std::uint32_t r : whole.stand_in) part.stand_in.push_back(moved(r));
  return part;
}

Matching matching_of(const Schedule& schedule, const ProcessGroup* group) {
  Matching whole = match(schedule, Folding::None);
  return group == nullptr ? whole : present_part(whole, {RankId(group->launch().rank)});
}

}  // namespace steptwin
