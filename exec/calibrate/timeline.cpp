#include "exec/calibrate/timeline.h"

#include <algorithm>
#include <tuple>

namespace steptwin {
namespace {

class Reader {
 public:
  Reader(const Matching& matching, const Trace& trace) : matching_(matching) {
    std::size_t at = 0;
    for (std::uint32_t rank = 0; rank < matching.ranks.size(); ++rank) {
      const std::size_t ops = matching.tables[matching.ranks[rank].tables].nodes.size() - 1;
      for (; ops > 0 && at + ops <= trace.spans.size() && trace.spans[at].rank == matching.ranks[rank].rank; at += ops)
        read_step(rank, trace.spans.data() + at, static_cast<std::uint32_t>(ops));
    }
  }
  std::vector<WorkItem> items;

 private:
  void read_step(std::uint32_t rank, const Span* spans, std::uint32_t ops) {
    const ProgramTables& tables = matching_.tables[matching_.ranks[rank].tables];
    for (std::uint32_t op = 0; op < ops; ++op) {
      const OpNode& node = tables.nodes[op];
      WorkItem item{rank, spans[op].step, op, 1, node.kind == OpNode::Kind::Local, ns(spans[op].start), ns(spans[op].end), 0};
      if ((node.flags & OpNode::kGroupFirst) != 0) {
        for (; op + 1 < ops && is_follower(tables.nodes[op + 1]); ++op, ++item.count)
          item.begin = std::max(item.begin, ns(spans[op + 1].start));
      } else if (!item.local && !leads(rank, tables, node)) {
        continue;
      }
      if (item.end > item.begin) items.push_back(item);
    }
  }

  static bool is_follower(const OpNode& node) { return (node.flags & OpNode::kGrouped) != 0 && (node.flags & OpNode::kGroupFirst) == 0; }

  // One member stands for a transfer: the sender, the lowest member of a collective.
  bool leads(std::uint32_t rank, const ProgramTables& tables, const OpNode& node) const {
    if (node.kind == OpNode::Kind::HostWait) return false;
    if (node.kind == OpNode::Kind::Message) return tables.channels[node.channel].send;
    const Instance& instance = matching_.instances[matching_.ranks[rank].counterparts[node.channel].rank];
    return std::all_of(instance.members.begin(), instance.members.end(), [&](const InstanceMember& m) { return m.rank >= rank; });
  }

  const Matching& matching_;
};

// Groups of the members of one transfer end together: the item before is the last one with an earlier end.
void serialise(std::vector<WorkItem>& items) {
  std::int64_t before = 0, last = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    WorkItem& item = items[i];
    if (i > 0 && item.end > last) before = last;
    last = item.end;
    if (before == 0) continue;  // what came before the first item is not known
    item.begin = std::max(item.begin, before);
    item.idle = i > 0 && items[i - 1].end == item.end ? 0 : item.begin - before;
  }
}

}  // namespace

std::vector<WorkItem> timeline(const Matching& matching, const Trace& trace, ExecutionMode mode) {
  std::vector<WorkItem> items = Reader(matching, trace).items;
  std::sort(items.begin(), items.end(), [](const WorkItem& a, const WorkItem& b) {
    return std::tie(a.end, a.begin, a.rank, a.op) < std::tie(b.end, b.begin, b.rank, b.op);
  });
  if (mode == ExecutionMode::Interp) serialise(items);
  return items;
}

}  // namespace steptwin
