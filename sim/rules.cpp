#include "sim/rules.h"

#include <algorithm>
#include <cmath>

namespace steptwin {

FixedCosts::FixedCosts(const Pricing& pricing, RankDone done, Tick tick)
    : pricing_(&pricing), prices_(pricing.prices.data()), done_(std::move(done)), tick_(std::move(tick)) {}

EventRules::EventRules(const Pricing& pricing, const Matching& matching, const SharedResources& shared, RankDone done, Tick tick)
    : FixedCosts(pricing, std::move(done), std::move(tick)), matching_(matching), shared_(shared) {
  std::uint32_t nodes = 1;
  for (std::uint32_t node : shared.node_of) nodes = std::max(nodes, node + 1);
  free_slots_.assign(nodes, shared.compute_slots);
  slot_queue_.resize(nodes);
  computing_.resize(nodes);
  if (shared.device_memory == 0) return;
  memory_.resize(matching.ranks.size());
  for (std::uint32_t r = 0; r < matching.ranks.size(); ++r) start_memory(r, 0);
}

bool EventRules::takes_slot(std::uint32_t rank, std::uint32_t op) const {
  if (shared_.compute_slots == 0) return false;
  const OpNode& node = nodes(rank)[op];
  if (shared_.slot_scope == SlotScope::Everything) return node.kind != OpNode::Kind::HostWait;
  return (node.flags & OpNode::kCompute) != 0;
}

bool EventRules::contends(std::uint32_t rank, std::uint32_t op) const {
  return shared_.contention > 0 && (nodes(rank)[op].flags & OpNode::kCompute) != 0;
}

bool EventRules::needs_turn(std::uint32_t rank, std::uint32_t op) const {
  const OpNode& node = nodes(rank)[op];
  if (node.kind == OpNode::Kind::Local) return (takes_slot(rank, op) || contends(rank, op)) && duration(node) > 0;
  return takes_slot(rank, op) || shared_.fair_links;
}

void EventRules::begin(Loop& loop, std::uint32_t rank, std::uint32_t op, std::int64_t start) {
  const std::int64_t work = loop.times(rank)[op].end;
  if (!needs_turn(rank, op) || work == 0) {
    loop.schedule_end(rank, op, start, start + work);
    return;
  }
  if (takes_slot(rank, op)) {
    const auto [first_rank, first_op] = lowest_member(rank, op);
    const std::uint32_t node = shared_.node_of[first_rank];
    slot_queue_[node].push({start, first_rank, first_op, rank, op});
    loop.schedule_grant(start, node, 0);
    return;
  }
  advance_flows(start);
  const bool compute = contends(rank, op);
  if (compute) ++computing_[shared_.node_of[rank]];
  flows_.push_back({rank, op, start, 0, static_cast<double>(work), 0, compute ? std::vector<std::uint32_t>() : ports_of(rank, op)});
  share();
  reschedule(loop, start);
}

std::pair<std::uint32_t, std::uint32_t> EventRules::lowest_member(std::uint32_t rank, std::uint32_t op) const {
  const OpNode& node = nodes(rank)[op];
  std::pair<std::uint32_t, std::uint32_t> lowest{rank, op};
  if (node.kind == OpNode::Kind::Local) return lowest;
  const auto member_op = [&](std::uint32_t member, std::uint32_t channel) {
    return matching_.tables[matching_.ranks[member].tables].channels[channel].ops[node.sequence];
  };
  const Counterpart& other = matching_.ranks[rank].counterparts[node.channel];
  if (node.kind == OpNode::Kind::Message) return std::min(lowest, {other.rank, member_op(other.rank, other.channel)});
  for (const InstanceMember& member : matching_.instances[other.rank].members)
    lowest = std::min(lowest, {member.rank, member_op(member.rank, member.channel)});
  return lowest;
}

void EventRules::grant(Loop& loop, std::uint32_t node, std::uint32_t freed, std::int64_t now) {
  free_slots_[node] += freed;
  auto& queue = slot_queue_[node];
  while (free_slots_[node] > 0 && !queue.empty()) {
    const Waiting next = queue.top();
    queue.pop();
    --free_slots_[node];
    const bool local = nodes(next.rank)[next.op].kind == OpNode::Kind::Local;
    const OpTimes& times = loop.times(next.rank)[next.op];
    const std::int64_t start = now + (local ? shared_.turnaround : 0), end = std::max(start + times.end, times.issue);
    loop.schedule_end(next.rank, next.op, start, end);
    loop.schedule_grant(end, node, 1);
  }
}

void EventRules::ended(Loop& loop, std::uint32_t rank, std::uint32_t op, std::int64_t) {
  if (shared_.device_memory == 0) return;
  RankMemory& memory = memory_[rank];
  bool freed = false;
  for (std::uint32_t b : foreign_last_[memory.plan][op]) {
    if (--memory.open_uses[b] == 0 && memory.dropped[b]) {
      memory.active -= memory.plan->buffers()[b].bytes;
      freed = true;
    }
  }
  if (freed && loop.host_stalled(rank)) loop.resume_host(rank);
}

// ---- links and contention --------------------------------------------------------------------------------------------------------------

// Ports: per rank and level (inside a node, between nodes) one out and one in.
std::vector<std::uint32_t> EventRules::ports_of(std::uint32_t rank, std::uint32_t op) const {
  const SimRank& sim = matching_.ranks[rank];
  const ProgramTables& tables = matching_.tables[sim.tables];
  const OpNode& node = tables.nodes[op];
  const Counterpart& other = sim.counterparts[node.channel];
  const std::uint32_t level = other.shape.nodes > 1 ? 1 : 0;
  const auto out = [level](std::uint32_t r) { return r * 4 + level * 2; };
  if (node.kind == OpNode::Kind::Message) {
    const bool send = tables.channels[node.channel].send;
    return {out(send ? rank : other.rank), out(send ? other.rank : rank) + 1};
  }
  std::vector<std::uint32_t> ports;
  for (const InstanceMember& member : matching_.instances[other.rank].members) {
    ports.push_back(out(member.rank));
    ports.push_back(out(member.rank) + 1);
  }
  return ports;
}

void EventRules::advance_flows(std::int64_t now) {
  for (Flow& flow : flows_) flow.left = std::max(0.0, flow.left - flow.rate * static_cast<double>(now - flows_at_));
  flows_at_ = now;
}

void EventRules::share() {
  std::vector<std::vector<std::uint32_t>> ports;
  for (const Flow& flow : flows_)
    if (!flow.ports.empty()) ports.push_back(flow.ports);
  const std::vector<double> shares = max_min_shares(ports, static_cast<std::uint32_t>(matching_.ranks.size()) * 4);
  std::size_t transfer = 0;
  for (Flow& flow : flows_) {
    flow.rate = flow.ports.empty() ? 1 / (1 + shared_.contention * (computing_[shared_.node_of[flow.rank]] - 1)) : shares[transfer++];
    flow.end = flows_at_ + static_cast<std::int64_t>(std::ceil(flow.left / flow.rate));
  }
}

void EventRules::reschedule(Loop& loop, std::int64_t now) {
  ++version_;
  if (flows_.empty()) return;
  std::int64_t first = INT64_MAX;
  for (const Flow& flow : flows_) first = std::min(first, flow.end);
  loop.schedule_wake(std::max(first, now), version_);
}

void EventRules::wake(Loop& loop, std::uint32_t token, std::int64_t now) {
  if (token != version_) return;  // the shares changed since this alarm was set
  advance_flows(now);
  std::vector<Flow> done;
  for (std::size_t i = 0; i < flows_.size();) {
    if (flows_[i].end > now) {
      ++i;
      continue;
    }
    if (flows_[i].ports.empty()) --computing_[shared_.node_of[flows_[i].rank]];
    done.push_back(std::move(flows_[i]));
    flows_.erase(flows_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  share();
  reschedule(loop, now);
  for (const Flow& flow : done) {
    if (flow.ports.empty()) {
      loop.schedule_end(flow.rank, flow.op, flow.start, now);  // not before its issue has ended
    } else {
      loop.finish(flow.rank, flow.op, flow.start, now);
    }
  }
}

std::vector<double> max_min_shares(const std::vector<std::vector<std::uint32_t>>& ports_of_flow, std::uint32_t ports) {
  std::vector<double> share(ports_of_flow.size(), 0), left(ports, 1);
  std::vector<std::uint32_t> open(ports, 0);
  for (const auto& list : ports_of_flow)
    for (std::uint32_t port : list) ++open[port];
  for (std::size_t fixed = 0; fixed < share.size();) {
    std::uint32_t tightest = 0;
    double smallest = 2;
    for (std::uint32_t port = 0; port < ports; ++port) {
      if (open[port] == 0 || left[port] / open[port] >= smallest) continue;
      smallest = left[port] / open[port];
      tightest = port;
    }
    for (std::size_t f = 0; f < share.size(); ++f) {
      const auto& list = ports_of_flow[f];
      if (share[f] > 0 || std::find(list.begin(), list.end(), tightest) == list.end()) continue;
      share[f] = smallest;
      ++fixed;
      for (std::uint32_t port : list) {
        left[port] -= smallest;
        --open[port];
      }
    }
  }
  return share;
}

// ---- memory -------------------------------------------------------------------------------------------------------------

void EventRules::find_foreign_ends(const MemoryPlan& plan, std::size_t ops) {
  auto& last = foreign_last_[&plan];
  if (!last.empty()) return;
  last.resize(ops);
  for (std::uint32_t b = 0; b < plan.buffers().size(); ++b)
    for (const auto* use = plan.uses_begin(plan.buffers()[b]); use != plan.uses_end(plan.buffers()[b]); ++use)
      if (use->foreign) last[use->last].push_back(b);
}

void EventRules::start_memory(std::uint32_t rank, std::uint32_t step) {
  const std::uint32_t tables = matching_.ranks[rank].tables;
  const MemoryPlan& plan = shared_.memory_plans->of(tables, step);
  find_foreign_ends(plan, matching_.tables[tables].nodes.size());
  RankMemory& memory = memory_[rank];
  memory = {};
  memory.plan = &plan;
  memory.step = step;
  memory.active = plan.resident(static_cast<std::size_t>(Space::Device));
  memory.dropped.assign(plan.buffers().size(), false);
  memory.open_uses.assign(plan.buffers().size(), 0);
  for (std::size_t b = 0; b < plan.buffers().size(); ++b) {
    const bool device = plan.buffers()[b].space == static_cast<std::uint8_t>(Space::Device);
    for (const auto* use = plan.uses_begin(plan.buffers()[b]); use != plan.uses_end(plan.buffers()[b]); ++use)
      if (use->foreign) ++memory.open_uses[b];
    if (!device) memory.open_uses[b] += 1u << 30;  // other spaces are not limited here: never released, never counted
  }
}

// Drops of every op before `op`: the host has issued them.
void EventRules::apply_drops(std::uint32_t rank, std::uint32_t before_op) {
  RankMemory& memory = memory_[rank];
  const MemoryPlan& plan = *memory.plan;
  for (; memory.next_drop < plan.by_last().size(); ++memory.next_drop) {
    const std::uint32_t b = plan.by_last()[memory.next_drop];
    if (plan.buffers()[b].last >= before_op) break;
    memory.dropped[b] = true;
    if (memory.open_uses[b] == 0) memory.active -= plan.buffers()[b].bytes;
  }
}

bool EventRules::may_issue(Loop& loop, std::uint32_t rank, std::uint32_t op, std::int64_t) {
  RankMemory& memory = memory_[rank];
  if (memory.step != loop.step(rank)) start_memory(rank, loop.step(rank));
  apply_drops(rank, op);
  const MemoryPlan& plan = *memory.plan;
  std::int64_t need = 0;
  std::size_t next = memory.next_alloc;
  for (; next < plan.buffers().size() && plan.buffers()[next].first <= op; ++next)
    if (plan.buffers()[next].space == static_cast<std::uint8_t>(Space::Device)) need += plan.buffers()[next].bytes;
  if (need > 0 && memory.active + need > shared_.device_memory) return false;
  memory.active += need;
  memory.next_alloc = next;
  return true;
}

}  // namespace steptwin
