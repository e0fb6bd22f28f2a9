// Lowering: a program becomes a linear instruction list, which one issuing thread per rank walks from front to back. The same list feeds
// every backend. Pure: no torch, no CUDA.
//
// Per op k, in issue order:      ALLOC* of the buffers whose first access is k, MARK k, then WAIT* and the work, RECORD, FREE* of the
//                                buffers whose last access is k.
// Per group of ops k..l:         (ALLOC* MARK) for each of k..l, FREE*, then WAIT*, one GROUP, RECORD. The frees stand before the launch:
//                                MARK has taken the op's references, FREE only drops the host's.
// HostWait k:                    MARK k, HOST_WAIT e, FREE*.
// ALLOC of a lazy buffer counts in the run's first repetition only; no FREE follows.
// ALLOC, MARK, FREE, HOST_WAIT happen on the issuing thread; the others are put into a lane and happen there, first in first out.
// An event is recorded at most once a step, by one lane. A WAIT stands for every earlier op of the recording lane too.
// Waits are transitively reduced: at most one per other lane and op, and none that an earlier wait, the lane's order, or a HostWait
// implies (vector clock per lane). The FIFO of a communicator counts as a dependency when its ops lie on different lanes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/base/diagnostic.h"
#include "schedule/ir/matching.h"
#include "schedule/ir/schedule.h"

namespace steptwin {

struct Instruction {
  enum class Kind : std::uint8_t { Alloc, Mark, Launch, Copy, Collective, Message, Group, Record, Wait, HostWait, Free };
  static constexpr std::uint32_t kNoEvent = 0xffffffffu;
  Kind kind = Kind::Mark;
  std::uint16_t lane = 0;   // where it happens; the number of lanes = the issuing thread
  std::uint32_t op = 0;     // local op it belongs to; Group: the first
  std::uint32_t value = 0;  // Alloc, Free: buffer. Record, Wait, HostWait: event (HostWait for another HostWait: kNoEvent). Group: number of ops
  bool operator==(const Instruction&) const = default;
};
const char* name_of(Instruction::Kind kind);  // "alloc", "mark", "launch", ...

struct InstructionList {
  ProgramId program;
  std::uint32_t lanes = 0;
  std::vector<std::uint32_t> event_op;  // [event] local op behind which it is recorded (of a group: the last)
  std::vector<Instruction> instructions;
};

// `tables` of the program, from match(). The schedule must be structurally sound.
InstructionList lower(const Schedule& schedule, const ProgramTables& tables);

// One instruction a line: "  wait    e3 on recv" ...
std::string print_instructions(const Schedule& schedule, const InstructionList& list);

// Static checks, independent of how the list was made (they walk it with clocks of their own). Codes:
//   LIST-ORDER   an op missing, twice, or out of issue order; a group cut
//   LIST-BUFFER  a buffer used outside its alloc and free, allocated or freed twice, never freed
//   LIST-EVENT   a wait before its record, an event recorded twice
//   LIST-WAIT    a dependency or communicator FIFO that no wait, lane order or HostWait guarantees
std::vector<Diagnostic> check_instructions(const Schedule& schedule, const ProgramTables& tables, const InstructionList& list);

}  // namespace steptwin
