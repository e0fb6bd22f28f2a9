// The two rule sets of the engine loop (schedule/ir/loop.h). ReplayRules: fixed costs, every op ends as soon as it is placed.
// EventRules: time order, with shared links, compute slots and memory limits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <vector>

#include "schedule/ir/loop.h"
#include "schedule/machine/machine.h"
#include "sim/memory_plans.h"
#include "sim/pricing.h"

namespace steptwin {

// Called when a rank finished a repetition.
using RankDone = std::function<void(std::uint32_t rank, std::uint32_t step, const OpTimes* times)>;
using Tick = std::function<bool(std::uint64_t ops_done, std::int64_t now)>;  // false: stop

class FixedCosts {
 public:
  FixedCosts(const Pricing& pricing, RankDone done, Tick tick);

  const OpNode* nodes(std::uint32_t rank) const { return pricing_->of_rank(rank); }
  std::int64_t duration(const OpNode& node) const { return prices_[node.price].duration; }
  LaunchNs launch(const OpNode& node) const { return prices_[node.price].launch; }
  bool tick(std::uint64_t done, std::int64_t now) const { return !tick_ || tick_(done, now); }
  void rank_done(std::uint32_t rank, std::uint32_t step, const OpTimes* times) const {
    if (done_) done_(rank, step, times);
  }

 private:
  const Pricing* pricing_;
  const Price* prices_;
  RankDone done_;
  Tick tick_;
};

class ReplayRules : public FixedCosts {
 public:
  static constexpr bool kTimed = false;
  using FixedCosts::FixedCosts;
};

// What the ranks of a machine share. Empty vectors and zeros: nothing is shared, and the event agenda equals replay.
struct SharedResources {
  bool fair_links = false;                     // transfers share the out and in port of every rank they touch, per level
  std::uint32_t compute_slots = 0;             // per node; 0 = no limit
  SlotScope slot_scope = SlotScope::Compute;   // Everything: transfers take slots and share no links
  std::int64_t turnaround = 0;                 // ns from taking a slot to the start of a local op
  double contention = 0;                       // Host::compute_contention
  std::vector<std::uint32_t> node_of;          // [simulated rank]
  std::int64_t device_memory = 0;              // capacity for `active`, bytes; 0 = no limit
  const MemoryPlans* memory_plans = nullptr;   // needed with device_memory
  bool any() const { return fair_links || compute_slots > 0 || contention > 0 || device_memory > 0; }
};

class EventRules : public FixedCosts {
 public:
  static constexpr bool kTimed = true;
  using Loop = EngineLoop<EventRules>;

  EventRules(const Pricing& pricing, const Matching& matching, const SharedResources& shared, RankDone done, Tick tick);

  bool needs_turn(std::uint32_t rank, std::uint32_t op) const;
  void begin(Loop& loop, std::uint32_t rank, std::uint32_t op, std::int64_t start);
  void ended(Loop& loop, std::uint32_t rank, std::uint32_t op, std::int64_t end);
  void wake(Loop& loop, std::uint32_t token, std::int64_t now);
  void grant(Loop& loop, std::uint32_t node, std::uint32_t freed, std::int64_t now);
  bool host_in_time() const { return shared_.device_memory > 0; }
  bool may_issue(Loop& loop, std::uint32_t rank, std::uint32_t op, std::int64_t now);

 private:
  // What slows others: transfers on shared links, compute ops of a node with contention. The work is the fixed-cost duration; alone it goes
  // at rate 1. Of transfers every port carries at most 1.
  struct Flow {
    std::uint32_t rank = 0, op = 0;
    std::int64_t start = 0, end = 0;      // end at the present rate, rounded up once
    double left = 0, rate = 0;            // ns of work left; share
    std::vector<std::uint32_t> ports;     // none: a compute op
  };
  bool contends(std::uint32_t rank, std::uint32_t op) const;
  std::vector<std::uint32_t> ports_of(std::uint32_t rank, std::uint32_t op) const;
  void advance_flows(std::int64_t now);
  void share();
  void reschedule(Loop& loop, std::int64_t now);

  // Slots. Taken by (ready, rank, op), of a transfer those of its lowest member, once everything else of the instant has happened; freed
  // when the op ends (of a group: the member, not the group).
  struct Waiting {
    std::int64_t ready = 0;
    std::uint32_t first_rank = 0, first_op = 0;  // the lowest of the counterparts
    std::uint32_t rank = 0, op = 0;              // the one that leads
    auto operator<=>(const Waiting&) const = default;
  };
  std::pair<std::uint32_t, std::uint32_t> lowest_member(std::uint32_t rank, std::uint32_t op) const;
  bool takes_slot(std::uint32_t rank, std::uint32_t op) const;

  // Memory of one rank: what `active` holds, and what is dropped but still in use.
  struct RankMemory {
    const MemoryPlan* plan = nullptr;            // of the repetition
    std::int64_t active = 0;
    std::size_t next_alloc = 0, next_drop = 0;   // into the plan
    std::uint32_t step = 0;
    std::vector<std::uint32_t> open_uses;        // [buffer] foreign uses not yet ended
    std::vector<bool> dropped;
  };
  void apply_drops(std::uint32_t rank, std::uint32_t before_op);
  void start_memory(std::uint32_t rank, std::uint32_t step);
  void find_foreign_ends(const MemoryPlan& plan, std::size_t ops);

  const Matching& matching_;
  const SharedResources& shared_;
  std::vector<Flow> flows_;
  std::int64_t flows_at_ = 0;
  std::uint32_t version_ = 0;
  std::vector<std::uint32_t> computing_;                                       // [node] compute ops among the flows
  std::vector<std::uint32_t> free_slots_;                                      // [node]
  std::vector<std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>>> slot_queue_;
  std::vector<RankMemory> memory_;
  std::map<const MemoryPlan*, std::vector<std::vector<std::uint32_t>>> foreign_last_;  // [op]: buffers whose last foreign use on a lane it is
};

// Max-min fair shares: flows over ports of capacity 1 each; progressive filling (Bertsekas & Gallager, Data Networks, 6.5.2).
std::vector<double> max_min_shares(const std::vector<std::vector<std::uint32_t>>& ports_of_flow, std::uint32_t ports);

}  // namespace steptwin
