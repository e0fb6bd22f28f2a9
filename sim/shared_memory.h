// Memories that ranks share: a node's pinned and pageable host memory and its disk; the device's where several ranks have one. The `allocated` curves of their
// ranks are summed on the common host clock (DESIGN 3): allocations of op k at issued(k-1), its drops at issued(k); at one instant
// drops come first, then (rank, op) decides, each rank in its own order. Resident buffers of all ranks lie there from the start.
// Folded ranks count as the ranks that they stand for, group by group, so the verdict is the one of the expanded run.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/ir/matching.h"
#include "schedule/machine/machine.h"
#include "sim/memory_plans.h"
#include "sim/out_of_memory.h"

namespace steptwin {

class SharedMemory {
 public:
  // `node_of`: [mesh rank]. All must outlive this; machine may be null (nothing is limited).
  SharedMemory(const Matching& matching, const MemoryPlans& plans, const std::vector<std::uint32_t>& node_of, const Machine* machine);

  // A simulated rank finished a repetition; repetitions of a rank come in order.
  void record(std::uint32_t rank, std::uint32_t step, const OpTimes* times, const HostClock& clock);
  // The earliest request that a shared memory cannot meet.
  std::optional<Shortage> first_shortage() const;
  void clear();

 private:
  struct Event {
    std::int64_t at = 0;
    bool allocates = false;
    std::uint32_t op = 0;  // local
    std::uint8_t space = 0, category = 0;
    std::int64_t bytes = 0;
  };
  // The next event of a mesh rank, in the order in which they happen.
  struct Cursor {
    std::int64_t at = 0;
    bool allocates = false;
    RankId rank;
    std::size_t event = 0;  // into the events of its stand-in
    auto operator<=>(const Cursor&) const = default;
  };
  bool watches() const;  // false: no program uses a limited one
  bool limited(std::size_t space) const { return capacity_[space] > 0; }
  std::uint32_t owner_of(RankId rank, std::size_t space) const;  // its device or node
  std::vector<std::vector<RankId>> distinct_groups(std::size_t space) const;
  std::optional<Shortage> shortage_of(const std::vector<RankId>& ranks, std::size_t space) const;
  std::optional<Shortage> resident_shortage(const std::vector<RankId>& ranks, std::size_t space, Shortage& held) const;
  const MemoryPlan& plan_of(RankId rank) const;  // of the first repetition
  std::string name_of_memory(RankId rank, std::size_t space) const;

  const Matching& matching_;
  const MemoryPlans& plans_;
  const std::vector<std::uint32_t>& node_of_;
  std::uint32_t ranks_per_device_ = 1;
  std::array<std::int64_t, kSpaces> capacity_{};  // 0: unlimited, or no program uses it
  std::vector<std::vector<Event>> events_;        // [simulated rank]
};

}  // namespace steptwin
