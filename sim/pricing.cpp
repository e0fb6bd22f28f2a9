#include "sim/pricing.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <unordered_map>

namespace steptwin {
namespace {

std::string kind_of(const Schedule& schedule, const Op& op) {
  const auto* compute = std::get_if<Compute>(&op.body);
  if (compute == nullptr) return kind_name(op.body);
  std::string text = "compute";
  for (const ComputePart& part : schedule.parts_of(*compute))
    text += fmt::format(" {} {}", name_of(part.phase), schedule.name(part.segment));
  return text;
}

void set_bytes(OpBody& body, Bytes bytes) {
  std::visit(Overloaded{[](Compute&) {}, [](HostWait&) {}, [&](auto& op) { op.bytes = bytes; }}, body);
}

class Pricer {
 public:
  Pricer(const Schedule& schedule, const CostModel& costs, bool guard_value, GroupPricing groups)
      : schedule_(schedule), costs_(costs), guard_value_(guard_value), groups_(groups) {}

  std::vector<OpNode> priced(const ProgramTables& tables, const SimRank& rank, std::vector<Price>& distinct, Coverage& coverage) {
    const Program& program = schedule_.programs[tables.program.value];
    std::vector<OpNode> out = tables.nodes;
    for (std::uint32_t i = 0; i < program.op_count; ++i) {
      const Price price{duration(program, tables, rank, i, coverage), launch(program, tables, i)};
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

  std::int64_t duration(const Program& program, const ProgramTables& tables, const SimRank& rank, std::uint32_t i, Coverage& coverage) {
    const OpId id(program.first_op.value + i);
    const Op& op = schedule_.ops[id.value];
    if ((op.guard.valid() && !guard_value_) || tables.nodes[i].kind == OpNode::Kind::HostWait) return 0;
    const Cost cost = op.given >= Duration(0) ? Cost{op.given, Provenance::Given} : asked(program, tables.nodes[i], rank, id);
    ++coverage.ops[static_cast<std::size_t>(cost.provenance)];
    if (cost.provenance != Provenance::Given && cost.provenance < costs_.promises()) ++coverage.below[kind_of(schedule_, op)];
    return ns(cost.duration);
  }

  Cost asked(const Program& program, const OpNode& node, const SimRank& rank, OpId id) {
    const Op& op = schedule_.ops[id.value];
    if (node.kind != OpNode::Kind::Local)
      return costs_.communicate(schedule_, program, with_group(program, id), rank.counterparts[node.channel].shape);
    if (const auto* compute = std::get_if<Compute>(&op.body)) return compute_cost(program, op, *compute);
    return costs_.copy(schedule_, program, id);
  }

  // The op with the bytes of its like before it in its group.
  Op with_group(const Program& program, OpId id) const {
    Op op = schedule_.ops[id.value];
    if (groups_ == GroupPricing::Alone || !op.group.valid() || !is_collective(op.body)) return op;
    Bytes bytes = bytes_of(op.body);
    for (std::uint32_t before = id.value; before-- > program.first_op.value && schedule_.ops[before].group == op.group;) {
      const OpBody& other = schedule_.ops[before].body;
      if (other.index() == op.body.index() && comm_of(other) == comm_of(op.body)) bytes += bytes_of(other);
    }
    set_bytes(op.body, bytes);
    return op;
  }

  Cost compute_cost(const Program& program, const Op& op, const Compute& compute) {
    const auto ask = [&] { return costs_.compute(schedule_, program, op); };
    const ComputePart* const part = compute.part_count == 1 ? &schedule_.parts[compute.first_part] : nullptr;
    if (part == nullptr || !part->work.valid() || costs_.compute_scope() == CostModel::ComputeScope::Op) return ask();
    const auto engine = static_cast<std::size_t>(program.lanes[op.lane.value].engine);
    Memo& memo = memo_[engine];
    if (costs_.compute_scope() == CostModel::ComputeScope::Parts) {
      const auto [it, fresh] = parts_memo_[engine].try_emplace(PartKey{part->work.value, part->segment.value, part->phase});
      if (fresh) it->second = ask();
      return it->second;
    }
    if (memo.known.empty()) memo.known.resize(schedule_.works.size()), memo.costs.resize(schedule_.works.size());
    if (!memo.known[part->work.value]) memo.costs[part->work.value] = ask(), memo.known[part->work.value] = true;
    return memo.costs[part->work.value];
  }

  struct PartKey {
    std::uint32_t work = 0, segment = 0;
    Phase phase = Phase::None;
    bool operator==(const PartKey&) const = default;
  };
  struct PartHash {
    std::size_t operator()(const PartKey& key) const {
      const std::uint64_t words = (std::uint64_t{key.work} << 32) | key.segment;
      return std::hash<std::uint64_t>()(words * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(key.phase));
    }
  };
  struct Memo {
    std::vector<bool> known;
    std::vector<Cost> costs;
  };
  const Schedule& schedule_;
  const CostModel& costs_;
  const bool guard_value_;
  const GroupPricing groups_;
  std::array<Memo, kEngineCount> memo_;  // [engine of the lane], by work; for ComputeScope::Work
  std::array<std::unordered_map<PartKey, Cost, PartHash>, kEngineCount> parts_memo_;  // for ComputeScope::Parts
  std::map<Price, std::uint32_t> known_;
};

void add(Coverage& sum, const Coverage& one) {
  for (std::size_t i = 0; i < sum.ops.size(); ++i) sum.ops[i] += one.ops[i];
  for (const auto& [kind, count] : one.below) sum.below[kind] += count;
}

}  // namespace

Pricing price(const Schedule& schedule, const Matching& matching, const CostModel& costs, bool guard_value, GroupPricing groups) {
  Pricing out;
  Pricer pricer(schedule, costs, guard_value, groups);
  std::map<std::pair<std::uint32_t, std::vector<CommShape>>, std::uint32_t> known;
  std::vector<Coverage> coverages;  // [variant]
  for (const SimRank& rank : matching.ranks) {
    std::vector<CommShape> shapes;
    for (const Counterpart& c : rank.counterparts) shapes.push_back(c.shape);
    const auto [it, fresh] = known.try_emplace({rank.tables, std::move(shapes)}, static_cast<std::uint32_t>(out.nodes.size()));
    if (fresh) out.nodes.push_back(pricer.priced(matching.tables[rank.tables], rank, out.prices, coverages.emplace_back()));
    out.variant.push_back(it->second);
    add(out.coverage, coverages[it->second]);
  }
  return out;
}

}  // namespace steptwin
