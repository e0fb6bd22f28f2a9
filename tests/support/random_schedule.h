// Random and exhaustive small schedules for differential tests. Deterministic in the seed.
#pragma once

#include <cstdint>
#include <functional>

#include "schedule/ir/schedule.h"

namespace steptwin::test {

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, portable, the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(next() % n); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

// At most `max_ops` ops over 1..4 ranks and 1..3 lanes each: compute, messages, collectives, groups, HostWaits, dependencies,
// buffers. Built along one global order, so it cannot deadlock, except when `disturb` swaps neighbours afterwards.
enum class Disturb : std::uint8_t { No, Swap };
Schedule random_schedule(std::uint64_t seed, std::uint32_t max_ops, Disturb disturb);

// The schedule of the same seed with many more buffers, of all categories, in device and pinned memory, some of them resident.
Schedule random_memory_schedule(std::uint64_t seed, std::uint32_t max_ops);

// The same with every access turned into a hold and without guards: same ops and lifetimes, and sound whatever was drawn (random accesses fit no
// payload and race), so that an executor can run it.
Schedule holding(Schedule schedule);

// All schedules of up to 4 ops on 2 ranks x 2 lanes: compute ops and at most one send/recv pair, durations 1 and 2, every
// dependency DAG. Returns how many were visited.
std::uint64_t for_each_small_schedule(std::uint32_t max_ops, const std::function<void(const Schedule&)>& visit);

// The schedule without one op (op ids and dependencies renumbered; its counterparts go too). For shrinking.
Schedule without_op(const Schedule& schedule, OpId op);

}  // namespace steptwin::test
