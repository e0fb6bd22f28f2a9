#include "sim/pricing.h"

#include <map>
#include <tuple>
#include <unordered_map>

namespace steptwin {
namespace {

// Ops that cost the same in one program: same work in the same place, whatever the micro-batch.
using ComputeKey = std::tuple<std::uint32_t, std::uint32_t, Phase, std::uint32_t, std::int32_t, std::int32_t>;

class Pricer {
 public:
  Pricer(const Schedule& schedule, const CostModel& costs, bool guard_value) : schedule_(schedule), costs_(costs), guard_value_(guard_value) {}

  std::vector<std::uint32_t> prices(const ProgramTables& tables, const SimRank& rank, std::vector<Price>& distinct) {
    const Program& program = schedule_.programs[tables.program.value];
    std::vector<std::uint32_t> out(program.op_count);
    memo_.clear();
    for (std::uint32_t i = 0; i < program.op_count; ++i) {
      const Price price{duration(program, tables, rank, i), launch(program, tables, i)};
      if (i > 0 && distinct[out[i - 1]] == price) {
        out[i] = out[i - 1];
        continue;
      }
      const auto [it, fresh] = known_.try_emplace(price, static_cast<std::uint32_t>(distinct.size()));
      if (fresh) distinct.push_back(price);
      out[i] = it->second;
    }
    return out;
  }

 private:
  // A group is launched once, at its first op.
  LaunchNs launch(const Program& program, const ProgramTables& tables, std::uint32_t i) const {
    const std::uint8_t flags = tables.nodes[i].flags;
    if ((flags & OpNode::kGrouped) && !(flags & OpNode::kGroupFirst)) return {};
    const CostModel::Launch launch = costs_.launch(schedule_, schedule_.ops[program.first_op.value + i]);
    return {ns(launch.total), ns(launch.first)};
  }

  std::int64_t duration(const Program& program, const ProgramTables& tables, const SimRank& rank, std::uint32_t i) {
    const OpId id(program.first_op.value + i);
    const Op& op = schedule_.ops[id.value];
    if (op.guard.valid() && !guard_value_) return 0;
    if (op.given >= Duration(0)) return ns(op.given);
    const OpNode& node = tables.nodes[i];
    switch (node.kind) {
      case OpNode::Kind::HostWait: return 0;
      case OpNode::Kind::Message:
      case OpNode::Kind::Collective: return ns(costs_.communicate(schedule_, program, op, rank.counterparts[node.channel].shape).duration);
      case OpNode::Kind::Local: break;
    }
    if (const auto* compute = std::get_if<Compute>(&op.body)) return compute_duration(program, op, *compute);
    return ns(costs_.copy(schedule_, program, id).duration);
  }

  std::int64_t compute_duration(const Program& program, const Op& op, const Compute& compute) {
    if (compute.part_count != 1) return ns(costs_.compute(schedule_, program, op).duration);
    const ComputePart& part = schedule_.parts[compute.first_part];
    const ComputeKey key{part.work.value, part.segment.value, part.phase, op.label.segment.value, op.label.layer, op.label.chunk};
    const auto [it, fresh] = memo_.try_emplace(key, 0);
    if (fresh) it->second = ns(costs_.compute(schedule_, program, op).duration);
    return it->second;
  }

  const Schedule& schedule_;
  const CostModel& costs_;
  const bool guard_value_;
  std::map<ComputeKey, std::int64_t> memo_;  // of one program
  std::map<Price, std::uint32_t> known_;
};

}  // namespace

Pricing price(const Schedule& schedule, const Matching& matching, const CostModel& costs, bool guard_value) {
  Pricing out;
  Pricer pricer(schedule, costs, guard_value);
  std::map<std::pair<std::uint32_t, std::vector<CommShape>>, std::uint32_t> known;
  for (const SimRank& rank : matching.ranks) {
    std::vector<CommShape> shapes;
    for (const Counterpart& c : rank.counterparts) shapes.push_back(c.shape);
    const auto [it, fresh] = known.try_emplace({rank.tables, std::move(shapes)}, static_cast<std::uint32_t>(out.index.size()));
    if (fresh) out.index.push_back(pricer.prices(matching.tables[rank.tables], rank, out.prices));
    out.variant.push_back(it->second);
  }
  return out;
}

}  // namespace steptwin
