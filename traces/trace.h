// Trace: what a run of a schedule gave, the same type whoever produced it (simulator or executor).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/base/ids.h"
#include "schedule/base/units.h"
#include "schedule/ir/schedule.h"

namespace steptwin {

// When one op of one rank ran. Guarded-off and HostWait ops have spans too.
struct Span {
  std::uint32_t step = 0;  // repetition, from 0
  RankId rank;
  OpId op;
  SimTime issue, ready, start, end;
};

enum class Curve : std::uint8_t { Allocated, Active, Reserved, Live };
inline constexpr std::size_t kCurves = 4;
const char* name_of(Curve curve);  // "allocated", "active", "reserved", "live"

// Highest point of one curve of one rank and space. op = the op at whose issue (allocated, active, reserved) or start (live) it is reached first.
struct MemoryPeak {
  RankId rank;
  Space space = Space::Device;
  Curve curve = Curve::Allocated;
  Bytes bytes;
  SimTime at;
  OpId op;                                         // none when the level is that of the resident buffers alone
  std::array<Bytes, kCategories> by_category{};    // sums to bytes (all zero for reserved)
};

// A step of a curve: the level from `at` on. category_index = kCategories: the total.
struct MemorySample {
  RankId rank;
  Space space = Space::Device;
  Curve curve = Curve::Allocated;
  std::uint8_t category_index = kCategories;
  SimTime at;
  Bytes bytes;
};

enum class Status : std::uint8_t { Running, Ok, OutOfMemory, Deadlock, Error, Interrupted };
const char* name_of(Status status);  // "running", "ok", "oom", "deadlock", "error", "interrupted"

struct Outcome {
  Status status = Status::Ok;
  std::string text;                  // one sentence for people; empty when ok
  std::vector<std::string> details;  // holders, waiting chains: op lines
  RankId rank;                       // of an out-of-memory: who
  OpId op;                           //                    : at which op
  Bytes requested, capacity, in_use;
  Space space = Space::Device;       //                    : of which memory; a rank's device, else shared by the ranks of a node
};

enum class Provenance : std::uint8_t { Given, Analytic, Interpolated, Measured };
const char* name_of(Provenance provenance);

// Disjoint classes of a rank over [0, step]; they add up to step exactly. See breakdown.h.
struct RankBreakdown {
  RankId rank;
  Duration compute{0}, exposed_communication{0}, bubble{0}, other{0};
  Duration work{0};       // sum of forward, backward, weight-gradient and recompute durations
  Duration rank_span{0};  // last compute end - first forward start
};

struct Trace {
  Outcome outcome;
  std::vector<RankId> stand_in;       // [rank] -> the simulated rank that stands for it (itself unless folded)
  std::vector<Span> spans;            // of stand-ins only, by rank, then step, then op; empty in a summary trace
  std::vector<MemoryPeak> peaks;      // of stand-ins
  std::vector<MemorySample> samples;  // of stand-ins; empty in a summary trace
  std::vector<RankId> simulated;      // the stand-ins, ascending
  std::vector<RankBreakdown> breakdowns;  // one per simulated rank
  Duration step_time{0};              // one repetition: makespan; else distance of the last two ends of the slowest rank
  Duration makespan{0};               // last end - first start over all ranks
  Duration largest_rank_span{0};      // largest (last compute end - first forward start) over ranks
  std::uint64_t op_count = 0;         // op instances that ran
  std::array<std::uint64_t, 4> provenance{};  // [Provenance] simulated ops whose duration comes from there (host waits and guarded-off ops aside)
  std::string engine;                 // "replay", "event", "cpu", "cuda"
  bool approximate_fold = false;
  std::vector<std::string> warnings;  // e.g. "fits only by flushing the cache"
  std::string digest() const;         // over spans (or rank bounds and peaks in a summary trace) in canonical order; 16 hex digits
};

}  // namespace steptwin
