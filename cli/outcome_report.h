// What standard error says when a run ended badly: the out-of-memory block with a remedy that works, the deadlock block.
#pragma once

#include <string>
#include <vector>

#include "cli/remedy.h"
#include "cli/session.h"
#include "cli/subject.h"
#include "traces/trace.h"

namespace steptwin {

// rank, op line, needed, capacity, what the memory holds (by category, largest first), and the remedies; or, when none of the
// changes steptwin knows suffices, says so.
std::string out_of_memory_text(const Subject& subject, const Trace& trace, const std::vector<Remedy>& remedies);
std::string deadlock_text(const Trace& trace);

}  // namespace steptwin
