// Where the time of a rank goes: four disjoint classes over [0, step] that add up to the step to the nanosecond. An instant
// belongs to the first class whose condition holds:
//   compute   a Compute op of phase F, B, I, W or R runs on a compute lane
//   other     a compute lane does optimizer work (a Compute op of phase U or none): no communication is exposed under it
//   exposed communication   a message or collective of this rank moves data (between its start and end)
//   other     optimizer work on another lane or a Copy runs, or the rank waits for its own host:
//             the next op of a compute lane has everything it needs (its predecessor on the lane and its dependencies have
//             ended) but is not ready, because it is not issued yet; while the host itself is held in a HostWait it does
//             not count as issuing, and what the host waits for decides the class
//   bubble    the rest: waiting for other ranks
// Intervals are half-open and cut to [origin, origin + step). Ops of zero duration (guarded off) take no time.
#pragma once

#include <span>

#include "traces/trace.h"

namespace steptwin {

// `spans`: those of one rank and one step, in op order; ops may be missing (a deadlock). Times are taken relative to `origin`
// (start of the step). work and rank_span are over whole spans, not cut.
RankBreakdown break_down(const Schedule& schedule, RankId rank, std::span<const Span> spans, SimTime origin, Duration step);

// Does the time of this op count as work: a Compute op of phase F, B, I, W or R on a compute lane?
bool is_model_work(const Schedule& schedule, const Program& program, const Op& op);

}  // namespace steptwin
