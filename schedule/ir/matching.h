// Matching: who meets whom. Turns a schedule into the static tables that the engine loop (loop.h), the deadlock check and
// lowering walk: per program the FIFO of every lane, the cross-lane dependencies, and the channels (the FIFOs of its
// communicators); per simulated rank the counterpart of every channel.
//
// A channel is one communicator FIFO of a rank: all collectives of a communicator, or the messages of one direction with
// one peer. The k-th op of a channel meets the k-th op of the counterpart channel(s).
//
// Folding: ranks are grouped into classes that behave alike under fixed costs. Start from (program, per-rank tables); split
// a class while two of its ranks differ, for any channel, in the nodes it spans, in the classes of its counterparts or in the
// channels it meets there; one rank per class is simulated. Exact for fixed costs; without folding every rank is its own class.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/ir/schedule.h"

namespace steptwin {

// How a communicator instance (or a pair) lies on the machine.
struct CommShape {
  std::uint32_t members = 1;
  std::uint32_t nodes = 1;             // nodes touched
  std::uint32_t members_per_node = 1;  // largest count on one node
  auto operator<=>(const CommShape&) const = default;
};

// Static facts of one op, indexed locally in its program. 16 bytes: the engine streams through them.
struct OpNode {
  enum class Kind : std::uint8_t { Local, Message, Collective, HostWait };
  static constexpr std::uint8_t kWatched = 1;      // something on another lane (or the host, or a FIFO) waits for this op
  static constexpr std::uint8_t kGroupFirst = 2;   // first op of a group
  static constexpr std::uint8_t kGrouped = 4;
  static constexpr std::uint8_t kFollows = 8;      // the op before it on its channel is in its own group
  static constexpr std::uint8_t kCompute = 16;     // Local: a Compute, not a Copy
  std::uint32_t dep_begin = 0;     // into ProgramTables::deps
  std::uint32_t sequence = 0;      // Message, Collective: k on its channel. HostWait: local target op
  std::uint32_t price = 0;         // left to whoever prices the ops: lies here so that the engine reads one stream
  std::uint16_t channel = 0;       // Message, Collective: index into ProgramTables::channels
  std::uint8_t lane = 0;           // the host (lane number `lanes`) for HostWait
  Kind kind : 2 = Kind::Local;
  std::uint8_t flags : 6 = 0;
};
static_assert(sizeof(OpNode) == 16);

struct Channel {
  CommId comm;
  bool collective = false;
  bool send = false;                 // direction of a message channel
  std::uint32_t peer_slot = 0;       // message: index into ProgramTables::peers
  std::vector<std::uint32_t> ops;    // local ops in issue order
};

// Tables of one program for ranks whose peers coincide alike.
struct ProgramTables {
  ProgramId program;
  std::uint32_t lanes = 0;                 // the host is lane number `lanes`
  std::vector<std::uint32_t> lane_begin;   // lanes + 1, into lane_ops
  std::vector<std::uint32_t> lane_ops;     // local ops, FIFO per lane
  std::vector<OpNode> nodes;               // one per op, plus a last one that closes dep_begin
  std::vector<std::uint32_t> deps;         // earlier local ops on other lanes; what the own lane implies is left out
  std::vector<Channel> channels;
  std::vector<std::pair<CommId, Peer>> peers;  // distinct peers in first-use order; coinciding ones share the first slot

  std::uint32_t dep_end(std::uint32_t op) const { return nodes[op + 1].dep_begin; }
};

// The counterpart of one channel of one simulated rank.
struct Counterpart {
  static constexpr std::uint32_t kNobody = 0xffffffffu;
  std::uint32_t rank = kNobody;      // message: index into Matching::ranks; collective: index into Matching::instances
  std::uint32_t channel = kNobody;   // message: channel of that rank
  CommShape shape;
};

struct SimRank {
  RankId rank;                       // the rank that is simulated
  std::uint32_t tables = 0;          // index into Matching::tables
  std::vector<Counterpart> counterparts;  // per channel
};

struct InstanceMember {
  std::uint32_t rank = 0;            // index into Matching::ranks
  std::uint32_t channel = 0;
};
struct Instance {
  CommId comm;
  std::vector<InstanceMember> members;  // distinct simulated members
};

struct Matching {
  std::vector<ProgramTables> tables;
  std::vector<SimRank> ranks;
  std::vector<Instance> instances;
  std::vector<std::uint32_t> stand_in;   // [mesh rank] -> index into ranks; kNobody for ranks that issue nothing
};

enum class Folding : std::uint8_t { Exact, None };

// `node_of`: node of every mesh rank; empty = one node. The schedule must be structurally sound (verify's RANGE, LABEL, COMM-MEMBER).
Matching match(const Schedule& schedule, Folding folding, const std::vector<std::uint32_t>& node_of = {});

}  // namespace steptwin
