#include "sim/pricing.h"

#include <array>
#include <map>

namespace steptwin {
namespace {

class Pricer {
 public:
  Pricer(const Schedule& schedule, const CostModel& costs, bool guard_value) : schedule_(schedule), costs_(costs), guard_value_(guard_value) {}

  std::vector<OpNode> priced(const ProgramTables& tables, const SimRank& rank, std::vector<Price>& distinct) {
    const Program& program = schedule_.programs[tables.program.value];
    std::vector<OpNode> out = tables.nodes;
    for (std::uint32_t i = 0; i < program.op_count; ++i) {
      const Price price{duration(program, tables, rank, i), launch(program, tables, i)};
      if (i > 0 && distinct[out[i - 1].price] == price) {
        out[i].price = out[i - 1].price;
        continue;
      }
      const auto [it, fresh] = known_.try_emplace(price, static_cast<std::uint32_t>(distinct.size()));
      if (fresh) distinct.push_back(price);
      out[i].price = it->second;
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
    const auto ask = [&] { return ns(costs_.compute(schedule_, program, op).duration); };
    const WorkId work = compute.part_count == 1 ? schedule_.parts[compute.first_part].work : WorkId();
    if (!work.valid() || costs_.compute_scope() != CostModel::ComputeScope::Work) return ask();
    const auto engine = static_cast<std::size_t>(program.lanes[op.lane.value].engine);
    std::vector<std::int64_t>& known = memo_[engine];
    if (known.empty()) known.assign(schedule_.works.size(), kUnknown);
    if (known[work.value] == kUnknown) known[work.value] = ask();
    return known[work.value];
  }

  static constexpr std::int64_t kUnknown = -1;
  const Schedule& schedule_;
  const CostModel& costs_;
  const bool guard_value_;
  std::array<std::vector<std::int64_t>, kEngineCount> memo_;  // [engine of the lane][work]; for ComputeScope::Work
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
    const auto [it, fresh] = known.try_emplace({rank.tables, std::move(shapes)}, static_cast<std::uint32_t>(out.nodes.size()));
    if (fresh) out.nodes.push_back(pricer.priced(matching.tables[rank.tables], rank, out.prices));
    out.variant.push_back(it->second);
  }
  return out;
}

}  // namespace steptwin
