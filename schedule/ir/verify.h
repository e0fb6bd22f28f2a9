// Is this schedule sound? Every check of DESIGN section 3, each with a stable code; every problem at once (at most `limit`).
//
//   RANGE        an id out of range, a dependency that does not point back in its own program, a lane missing
//   LABEL        a HostWait with a lane, a guard that is not a one-element buffer, a group that is not a run of communication ops on one lane
//   COMM-MEMBER  an op on a communicator its ranks are no members of; a peer or root that is no member; a message to oneself outside a group (SELF)
//   COMM-ORDER   members disagree on the k-th collective (kind, bytes, dtype, root); warning (error for NCCL when lanes differ):
//                two communicators sharing two or more ranks are used in different relative order on two ranks
//   MISSING-SEND / MISSING-RECV   unmatched message;  SIZE  matched but bytes or dtype differ;  DUP-SEND  two sends fill one piece of a receive
//   MESSAGE-ORDER  matched, but the labels of the two ends name different messages (warning where only their stages are no neighbours)
//   GROUP-SPLIT  a pair inside one group on one side, split over two interlocking groups on the other
//   ACCESS       an access that does not fit its op (communication bytes against part sizes), a part outside its buffer or layout, a
//                buffer smaller than its layout, a lazy buffer that nobody uses
//   USE-BEFORE-WRITE  a part read that no earlier op has written (resident buffers count as written)
//   RACE         two overlapping accesses, one a write, ordered by no lane, dependency or HostWait of the same rank
//   GUARD        a guard on communication that is not the result of a collective over at least its members, or that only some of its members have
//   DEADLOCK     a circular wait through lanes, communicators, groups, HostWaits: the shortest cycle, with op lines
// Linear in ops and per program wherever possible, never per rank beyond the communication tables.
#pragma once

#include <vector>

#include "schedule/base/diagnostic.h"
#include "schedule/ir/schedule.h"

namespace steptwin {

enum class Transport : std::uint8_t { Any, Nccl };

struct VerifyOptions {
  Transport transport = Transport::Any;
  std::size_t limit = 20;
};

std::vector<Diagnostic> verify(const Schedule& schedule, const VerifyOptions& options = {});

// The deadlock explained: what every blocked rank stands at and the shortest cycle of waits. Empty when there is none.
// Used by verify and, for schedules run with --no-verify, by the engine's outcome.
std::vector<Diagnostic> find_deadlock(const Schedule& schedule);

}  // namespace steptwin
