#include "sim/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <set>

namespace steptwin {

SharedMemory::SharedMemory(const Matching& matching, const MemoryPlans& plans, const std::vector<std::uint32_t>& node_of,
                       const Machine* machine)
    : matching_(matching), plans_(plans), node_of_(node_of), events_(matching.ranks.size()) {
  if (machine == nullptr) return;
  const auto limit = [&](Space space, Bytes capacity) {
    const auto s = static_cast<std::size_t>(space);
    if (plans.use_space(s)) capacity_[s] = capacity.value;
  };
  limit(Space::Pinned, machine->host.pinned_memory);
  limit(Space::Pageable, machine->host.pageable_memory);
  ranks_per_device_ = static_cast<std::uint32_t>(machine->ranks_per_device);
  if (ranks_per_device_ > 1) limit(Space::Device, machine->device.memory);
  if (machine->disk) limit(Space::Storage, machine->disk->capacity);
}

void SharedMemory::record(std::uint32_t rank, std::uint32_t step, const OpTimes* times, const HostClock& clock) {
  if (!watches()) return;
  const MemoryPlan& plan = plans_.of(matching_.ranks[rank].tables, step);
  const auto before = static_cast<std::ptrdiff_t>(events_[rank].size());
  for (const auto& b : plan.buffers()) {
    if (!limited(b.space) || b.bytes == 0) continue;
    events_[rank].push_back({clock.before(times, b.first), true, b.first, b.space, b.category, b.bytes});
    if (b.last == Lifetime::kStays) continue;
    events_[rank].push_back({times[b.last].issue, false, b.last, b.space, b.category, b.bytes});
  }
  std::stable_sort(events_[rank].begin() + before, events_[rank].end(),
                   [](const Event& a, const Event& b) { return a.op != b.op ? a.op < b.op : a.allocates > b.allocates; });
}

bool SharedMemory::watches() const {
  return std::any_of(capacity_.begin(), capacity_.end(), [](std::int64_t c) { return c > 0; });
}

void SharedMemory::clear() {
  for (auto& events : events_) events.clear();
}

const MemoryPlan& SharedMemory::plan_of(RankId rank) const { return plans_.of(matching_.ranks[matching_.stand_in[rank.value]].tables, 0); }

std::uint32_t SharedMemory::owner_of(RankId rank, std::size_t space) const {
  if (static_cast<Space>(space) == Space::Device) return rank.value / ranks_per_device_;
  return node_of_.empty() ? 0 : node_of_[rank.value];
}

// The ranks of every device or node that issue anything; groups whose ranks are stood for alike, in order, once.
std::vector<std::vector<RankId>> SharedMemory::distinct_groups(std::size_t space) const {
  std::vector<std::vector<RankId>> groups;
  for (std::uint32_t r = 0; r < matching_.stand_in.size(); ++r) {
    if (matching_.stand_in[r] == Counterpart::kNobody) continue;
    const std::uint32_t owner = owner_of(RankId(r), space);
    if (owner >= groups.size()) groups.resize(owner + 1);
    groups[owner].emplace_back(r);
  }
  std::set<std::vector<std::uint32_t>> seen;
  std::erase_if(groups, [&](const std::vector<RankId>& ranks) {
    std::vector<std::uint32_t> stand_ins;
    for (RankId rank : ranks) stand_ins.push_back(matching_.stand_in[rank.value]);
    return ranks.empty() || !seen.insert(std::move(stand_ins)).second;
  });
  return groups;
}

std::string SharedMemory::name_of_memory(RankId rank, std::size_t space) const {
  const std::uint32_t owner = owner_of(rank, space);
  switch (static_cast<Space>(space)) {
    case Space::Device:
      return fmt::format("memory of device {}, which {} ranks share", owner, ranks_per_device_);
    case Space::Storage:
      return fmt::format("disk of node {}", owner);
    case Space::Pinned:
    case Space::Pageable:
      break;
  }
  return fmt::format("{} memory of node {}", name_of(static_cast<Space>(space)), owner);
}

// Adds the resident buffers of the ranks, in order, to `held`; the shortage if they do not fit.
std::optional<Shortage> SharedMemory::resident_shortage(const std::vector<RankId>& ranks, std::size_t space, Shortage& held) const {
  for (RankId rank : ranks) {
    const MemoryPlan& plan = plan_of(rank);
    const std::int64_t own = plan.resident(space);
    for (std::size_t c = 0; c < kCategories; ++c) held.held[c] += plan.resident_by_category(space)[c];
    if (own > 0 && held.in_use + own > held.capacity) {
      held.rank = rank, held.op = plan.first_op(), held.bytes = own, held.resident = true;
      held.memory = name_of_memory(rank, space);
      return held;
    }
    held.in_use += own;
  }
  return std::nullopt;
}

// Merges the events of the ranks, each in its own order, which holds also where a host issues several ops at one instant.
std::optional<Shortage> SharedMemory::shortage_of(const std::vector<RankId>& ranks, std::size_t space) const {
  Shortage now;
  now.space = static_cast<Space>(space);
  now.capacity = capacity_[space];
  if (auto shortage = resident_shortage(ranks, space, now)) return shortage;
  std::priority_queue<Cursor, std::vector<Cursor>, std::greater<>> next;
  const auto advance = [&](RankId rank, std::size_t from) {
    const auto& events = events_[matching_.stand_in[rank.value]];
    while (from < events.size() && events[from].space != space) ++from;
    if (from < events.size()) next.push({events[from].at, events[from].allocates, rank, from});
  };
  for (RankId rank : ranks) advance(rank, 0);
  while (!next.empty()) {
    const Cursor cursor = next.top();
    next.pop();
    const auto& events = events_[matching_.stand_in[cursor.rank.value]];
    const Event& first = events[cursor.event];
    std::int64_t change = 0;
    std::size_t i = cursor.event;
    for (; i < events.size() && events[i].op == first.op && events[i].allocates == first.allocates; ++i) {
      if (events[i].space != space) continue;
      const std::int64_t bytes = first.allocates ? events[i].bytes : -events[i].bytes;
      change += bytes;
      now.held[events[i].category] += bytes;
    }
    if (change > 0 && now.in_use + change > now.capacity) {
      now.rank = cursor.rank, now.op = OpId(plan_of(cursor.rank).first_op().value + first.op);
      now.at = at_ns(first.at), now.bytes = change, now.memory = name_of_memory(cursor.rank, space);
      return now;
    }
    now.in_use += change;
    advance(cursor.rank, i);
  }
  return std::nullopt;
}

std::optional<Shortage> SharedMemory::first_shortage() const {
  std::optional<Shortage> first;
  if (!watches()) return first;
  for (std::size_t space = 0; space < kSpaces; ++space) {
    if (!limited(space)) continue;
    for (const auto& ranks : distinct_groups(space)) {
      const auto shortage = shortage_of(ranks, space);
      if (shortage && (!first || shortage->at < first->at)) first = shortage;
    }
  }
  return first;
}

}  // namespace steptwin
