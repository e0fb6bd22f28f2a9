// The four memory curves of a run's first repetition by brute force: straight from the definitions of DESIGN 3, from a schedule and the spans of one rank,
// quadratic and without any table. For tests.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/ir/schedule.h"
#include "traces/trace.h"

namespace steptwin::test {

struct OracleBuffer {
  const Buffer* buffer = nullptr;
  bool resident = false;
  std::uint32_t first = 0, last = 0;  // ops of the program that begin and end its life, numbered from 0
  LaneId home;
  std::int64_t allocated_at = 0, dropped_at = 0, released_at = 0;  // host clock; released: dropped and no other lane uses it
  std::int64_t live_from = 0, live_to = 0;                         // device clock
};

struct OraclePeak {
  std::int64_t bytes = 0, at = 0;
  std::uint32_t op = 0xffffffffu;  // from 0; none: the resident level
};

class MemoryOracle {
 public:
  // `spans`: all spans of one rank in one step, by op. `launches`: launch cost of every op, where the host may have waited for room: it
  // then allocates when it goes on. Else empty: it allocates for op k at issued(k-1).
  MemoryOracle(const Schedule& schedule, const Program& program, const std::vector<Span>& spans, std::vector<std::int64_t> launches = {});

  const std::vector<OracleBuffer>& buffers() const { return buffers_; }
  bool uses(Space space) const;
  std::int64_t resident(Space space) const;
  // The level at an instant, of one category or (kCategories) all: intervals are half-open, ends come before starts.
  std::int64_t level(Space space, Curve curve, std::int64_t at, std::size_t category = kCategories) const;
  // The level that the host meets at op k, after its allocations: `allocated` and `active` between the allocations and drops of k.
  std::int64_t level_at_op(Space space, Curve curve, std::uint32_t op, std::size_t category = kCategories) const;
  OraclePeak peak(Space space, Curve curve) const;

 private:
  std::int64_t host_before(std::uint32_t op) const {
    if (!launches_.empty()) return issue_[op] - launches_[op];
    return op == 0 ? 0 : issue_[op - 1];
  }
  std::int64_t lane_active(Space space, LaneId home, std::uint32_t op) const;
  std::int64_t reserved_at_op(Space space, std::uint32_t op) const;

  std::vector<OracleBuffer> buffers_;
  std::vector<std::int64_t> issue_, launches_;
  std::uint32_t lanes_ = 0;
};

}  // namespace steptwin::test
