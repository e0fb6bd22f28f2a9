// Does a trace obey its schedule? One check for simulated and measured traces: the inequalities of schedule.h between the times of ops.
//   SPAN       an op of a rank without a span in a step, or with two; times that run backwards (issue order, ready > start, start > end)
//   LANE       an op that is ready before the op ahead of it on its lane has ended (within a group: before the group's turn)
//   DEPENDENCY an op that is ready before one of its dependencies has ended, or issued before a HostWait ahead of it has returned
//   FIFO       an op that is ready before the op ahead of it in its communicator's FIFO has ended
//   MEMBER     communication that starts before one of its counterparts is ready, or whose counterparts start at different times or,
//              outside groups, end at different times; members of a group that end at different times
//   STEP       an op of a repetition that is ready before an op of its rank in the repetition before has ended
// Durations are not judged: that is what a cost model or a clock says. Folded traces are read through stand_in.
#pragma once

#include <vector>

#include "schedule/base/diagnostic.h"
#include "traces/trace.h"

namespace steptwin {

// `steps`: repetitions that the trace must hold. At most `limit` problems.
std::vector<Diagnostic> check_trace(const Schedule& schedule, const Trace& trace, std::uint32_t steps, std::size_t limit = 20);

}  // namespace steptwin
