// What a program's order demands, seen by whoever lowers it or checks a lowering: which ops form a unit (a group, else the op alone),
// where an op stands on its lane, and the edges between lanes (dependencies and communicator FIFOs).
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/ir/matching.h"

namespace steptwin {

class ProgramOrder {
 public:
  ProgramOrder(const Schedule& schedule, const ProgramTables& tables);

  std::uint32_t ops() const { return static_cast<std::uint32_t>(last_.size()); }
  std::uint32_t lanes() const { return tables_.lanes; }
  const OpNode& node(std::uint32_t op) const { return tables_.nodes[op]; }
  bool is_host_wait(std::uint32_t op) const { return node(op).kind == OpNode::Kind::HostWait; }
  std::uint32_t last_of_unit(std::uint32_t op) const { return last_[op]; }
  std::uint32_t lane(std::uint32_t op) const { return node(op).lane; }
  std::uint32_t place(std::uint32_t op) const { return place_[op]; }  // on its lane, from 0; of a HostWait: 0

  // visit(u) for every earlier op u on another lane (or the host) that must have ended before `op` is ready. Own-lane ones are implied.
  template <class Visit>
  void each_edge(std::uint32_t op, Visit visit) const {
    for (std::uint32_t d = node(op).dep_begin; d < tables_.dep_end(op); ++d) {
      if (lane(tables_.deps[d]) != lane(op)) visit(tables_.deps[d]);
    }
    const OpNode& n = node(op);
    const bool communicates = n.kind == OpNode::Kind::Message || n.kind == OpNode::Kind::Collective;
    if (!communicates || (n.flags & OpNode::kFollows) != 0 || n.sequence == 0) return;
    const std::uint32_t before = tables_.channels[n.channel].ops[n.sequence - 1];
    if (lane(before) != lane(op)) visit(before);
  }

 private:
  const ProgramTables& tables_;
  std::vector<std::uint32_t> last_, place_;
};

}  // namespace steptwin
