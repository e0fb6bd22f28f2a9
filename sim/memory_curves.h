// The four memory curves of a rank (schedule.h, DESIGN 3), from the lifetimes of its program and the times of its ops:
//   allocated  by op: a pure function of the program
//   active     on the host clock: plus dropped buffers that an op on another lane than home has not finished
//   reserved   resident bytes plus, per home lane, the high-water mark of its active bytes
//   live       on the device clock: first start to last end of a buffer's accesses
// Host instants: the allocations of op k happen at issued(k-1), or, where the host had to wait for room, when it goes on
// (issued(k) - launch cost); its drops at issued(k). At one instant ends come first.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "schedule/ir/liveness.h"
#include "schedule/ir/loop.h"
#include "schedule/ir/schedule.h"
#include "traces/trace.h"

namespace steptwin {

// What the curves need of a program in a run's first or in a later repetition, computed once per program.
class MemoryPlan {
 public:
  struct Buf {
    std::int64_t bytes = 0;
    std::uint32_t first = 0, last = 0;  // local ops; last may be Lifetime::kStays
    std::uint32_t use_begin = 0, use_end = 0;
    std::uint32_t buffer = 0;           // index into Program::buffers
    std::uint16_t home = 0;             // lane
    std::uint8_t space = 0, category = 0;
  };
  // First and last access of a buffer on one lane: lanes are FIFOs, so these bound all of its accesses there.
  struct Use {
    std::uint32_t first = 0, last = 0;
    bool foreign = false;               // another lane than home
  };

  MemoryPlan(const Schedule& schedule, const Program& program, Repetition repetition = Repetition::Later);

  const std::vector<Buf>& buffers() const { return buffers_; }           // by first op
  const std::vector<std::uint32_t>& by_last() const { return by_last_; } // indices into buffers(), by last op, without those that stay
  const Use* uses_begin(const Buf& b) const { return uses_.data() + b.use_begin; }
  const Use* uses_end(const Buf& b) const { return uses_.data() + b.use_end; }
  std::uint32_t lanes() const { return lanes_; }
  OpId first_op() const { return first_op_; }
  std::int64_t resident(std::size_t space) const { return resident_[space]; }
  const std::array<std::int64_t, kCategories>& resident_by_category(std::size_t space) const { return resident_categories_[space]; }
  bool uses_space(std::size_t space) const { return used_[space]; }

 private:
  void collect_uses(const Schedule& schedule, const Program& program, const std::vector<std::uint32_t>& slot);

  std::vector<Buf> buffers_;
  std::vector<std::uint32_t> by_last_;
  std::vector<Use> uses_;
  std::uint32_t lanes_ = 0;
  OpId first_op_;
  std::array<std::int64_t, kSpaces> resident_{};
  std::array<std::array<std::int64_t, kCategories>, kSpaces> resident_categories_{};
  std::array<bool, kSpaces> used_{};
};

// The host's clock beside the times of its ops.
struct HostClock {
  std::int64_t start = 0;                   // when the host comes to op 0: after the step before
  std::span<const std::int64_t> launches;   // [op] launch cost, where hosts may have waited for room; else empty
  // When it allocates for an op.
  std::int64_t before(const OpTimes* times, std::uint32_t op) const {
    if (!launches.empty()) return times[op].issue - launches[op];
    return op == 0 ? start : times[op - 1].issue;
  }
};

struct MemoryResult {
  std::vector<MemoryPeak> peaks;       // per used space and curve
  std::vector<MemorySample> samples;   // only when asked for
};

// Reused between ranks to avoid allocation.
class MemoryWalker {
 public:
  // `times`: of the program's ops. Appends to `out`; with_samples false leaves out.samples alone.
  enum class Detail : std::uint8_t { Peaks, Samples };
  void walk(const MemoryPlan& plan, RankId rank, const OpTimes* times, Detail detail, MemoryResult& out, const HostClock& host = {});

 private:
  struct Level { std::int64_t bytes = 0; std::int64_t at = 0; std::uint32_t op = 0xffffffffu; };
  struct ReservedStep { std::uint8_t space = 0; std::int64_t at = 0, bytes = 0; };
  void host_curves(const MemoryPlan& plan, const OpTimes* times);
  void live_curve(const MemoryPlan& plan);
  void collect_lives(const MemoryPlan& plan, const OpTimes* times);
  void emit_peaks(const MemoryPlan& plan, RankId rank, MemoryResult& out) const;
  void emit_samples(const MemoryPlan& plan, RankId rank, const OpTimes* times, MemoryResult& out) const;

  HostClock host_;
  std::vector<std::int64_t> release_;   // [buffer] when its bytes leave `active`
  std::vector<std::int64_t> start_, end_;  // [buffer] device-clock life
  std::vector<std::pair<std::int64_t, std::uint32_t>> starts_, ends_, deferred_;
  std::vector<std::pair<std::int64_t, std::uint32_t>> scratch_;
  std::vector<std::uint32_t> slices_;
  std::vector<ReservedStep> reserved_steps_;
  std::vector<std::int64_t> lane_active_, lane_high_;
  std::array<std::array<Level, kCurves>, kSpaces> peak_;
};

}  // namespace steptwin
