// The numbers of a run: the printed card, the JSON `summary` and `ranks`. Computed once from a fresh trace and stored as metrics;
// read again from the store alone.
//   bubble_fraction         mean over all ranks of bubble / step (classes of traces/breakdown.h)
//   bubble_rate_makespan    1 - work/measure with the makespan as measure, bubble_rate_span with the largest rank span
//     (specs/schedules.md 0.3: (measure - m*T1)/measure, m*T1 being a rank's work). Ranks with different work: the mean of
//     their rates, which is 1 - (mean work)/measure. Of a run of several steps, whose makespan spans them all, the step time
//     takes the place of the makespan.
//   mfu                     model flops of a step / (step time * ranks * peak flops of a rank)
// A rank of a folded run counts as the rank that stands for it. Numbers that are undefined (no step time, no peak given) are absent.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "traces/store.h"
#include "traces/trace.h"

namespace steptwin {

// What the schedule alone does not say. 0 = unknown.
struct StepFacts {
  double model_flops = 0;          // of one step, all ranks (recompute not counted)
  double tokens = 0;               // of one step, all ranks
  double peak_flops_per_rank = 0;  // flops/s
  std::uint32_t steps = 1;         // repetitions that were simulated
  std::optional<double> bubble_theory;
};

struct RankRow {
  RankId rank, stand_in;
  std::string program;
  std::int32_t stage = -1;  // of its first chunk; -1 = no pipeline
  Duration compute{0}, exposed_communication{0}, bubble{0}, other{0}, work{0}, rank_span{0};
  std::array<Bytes, kCurves> device_peak{};  // by Curve
  Duration step() const { return compute + exposed_communication + bubble + other; }
  bool operator==(const RankRow&) const = default;
};

// The largest peak of a curve over all ranks, device memory; the lowest rank where several share it.
struct RunPeak {
  Curve curve = Curve::Allocated;
  RankId rank;
  Bytes bytes;
  SimTime at;
  OpId op;                                                // none: the resident level
  std::string op_name;                                    // "F 3"; empty without op
  std::vector<std::pair<std::string, Bytes>> categories;  // largest first; empty for reserved
  bool operator==(const RunPeak&) const = default;
};

struct RunSummary {
  std::string status, engine, schedule_digest, trace_digest;
  std::int64_t ops = 0;
  Duration step_time{0}, makespan{0}, largest_rank_span{0};
  std::optional<double> bubble_fraction, bubble_rate_makespan, bubble_rate_span, bubble_theory, mfu, tokens_per_second;
  std::vector<RunPeak> peaks;  // by curve; only curves that were recorded
  std::vector<RankRow> ranks;
  const RunPeak* peak(Curve curve) const;
  bool operator==(const RunSummary&) const = default;
};

RunSummary summarize(const Schedule& schedule, const std::string& schedule_digest, const Trace& trace, const StepFacts& facts);

// The rows to store with the run; load_summary needs them.
std::vector<Metric> metrics_of(const RunSummary& summary);

// What summarize gave, from the store. `run_id` must exist (Store::resolve).
RunSummary load_summary(const Store& store, std::int64_t run_id);

}  // namespace steptwin
