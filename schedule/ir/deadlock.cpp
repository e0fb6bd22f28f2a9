// Runs the engine loop with zero costs; what cannot be placed waits in a circle (or for somebody who never comes). The wait
// graph has one node per blocked lane and per blocked host; the shortest cycle explains the deadlock. Whether there is one is
// decided on folded ranks; the explanation names real ranks, so it is made without folding (of very large runs: with stand-ins).
#include <fmt/format.h>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/breadth_first_search.hpp>
#include <optional>
#include <span>

#include "schedule/base/error.h"
#include "schedule/ir/loop.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"

namespace steptwin {
namespace {

struct ZeroCosts {
  static constexpr bool kTimed = false;
  const Matching& matching;
  const OpNode* nodes(std::uint32_t rank) const { return matching.tables[matching.ranks[rank].tables].nodes.data(); }
  std::int64_t duration(const OpNode&) const { return 0; }
  LaunchNs launch(const OpNode&) const { return {}; }
  bool tick(std::uint64_t, std::int64_t) const { return true; }
  void rank_done(std::uint32_t, std::uint32_t, const OpTimes*) const {}
};
using Loop = EngineLoop<ZeroCosts>;

// One reason to wait: the op that waits, the op it waits for, and where that one's lane stands.
struct Wait {
  std::uint32_t node = 0;            // who waits
  std::uint32_t rank = 0, op = 0;    // the waiting op (local)
  std::uint32_t for_rank = 0;
  std::optional<std::uint32_t> for_op;  // none: nobody issues the counterpart
  std::uint32_t for_node = 0;
};

class WaitGraph {
 public:
  WaitGraph(const Schedule& schedule, const Matching& matching, const Loop& loop) : schedule_(schedule), matching_(matching), loop_(loop) {
    first_node_.push_back(0);
    for (const SimRank& rank : matching.ranks) first_node_.push_back(first_node_.back() + matching.tables[rank.tables].lanes + 1);
    for (std::uint32_t r = 0; r < matching.ranks.size(); ++r) collect(r);
  }

  Diagnostic explain() const {
    Diagnostic out;
    out.code = "DEADLOCK";
    const std::vector<std::size_t> cycle = shortest_cycle();
    if (!cycle.empty()) {
      out.text = fmt::format("schedule deadlocks: {}", who_waits(cycle));
      for (std::size_t edge : cycle) out.details.push_back(describe(waits_[edge]));
      out.help = "reorder one of these ops, or put them on different lanes or in one group";
    } else {
      out.text = "schedule deadlocks: ops wait for counterparts that are never issued";
      out.help = "add the missing counterpart";
    }
    append_positions(cycle, out);
    return out;
  }

 private:
  const ProgramTables& tables(std::uint32_t r) const { return matching_.tables[matching_.ranks[r].tables]; }
  std::uint32_t node(std::uint32_t r, std::uint32_t lane) const { return first_node_[r] + lane; }
  std::uint32_t node_of_op(std::uint32_t r, std::uint32_t op) const {
    // An op that its host has not issued waits for the host first.
    const std::uint32_t lanes = tables(r).lanes;
    return loop_.host_position(r) <= op ? node(r, lanes) : node(r, tables(r).nodes[op].lane);
  }

  void add(std::uint32_t from, std::uint32_t r, std::uint32_t op, std::uint32_t for_rank, std::optional<std::uint32_t> for_op) {
    waits_.push_back({from, r, op, for_rank, for_op, for_op ? node_of_op(for_rank, *for_op) : from});
  }

  void collect(std::uint32_t r) {
    if (loop_.finished(r)) return;
    const std::uint32_t lanes = tables(r).lanes;
    if (loop_.host_waiting_on(r) < tables(r).nodes.size()) add(node(r, lanes), r, loop_.host_position(r), r, loop_.host_waiting_on(r));
    for (std::uint32_t l = 0; l < lanes; ++l) {
      const auto blocked = loop_.blocked(r, l);
      if (blocked.wait == Loop::Wait::Op) add(node(r, l), r, blocked.head, r, blocked.waiting_on);
      if (blocked.wait == Loop::Wait::Host) add(node(r, l), r, blocked.head, r, blocked.waiting_on);
      if (blocked.wait == Loop::Wait::Counterpart) collect_counterparts(r, l, blocked.head);
    }
  }

  // Every unmatched op of the group at the lane's head (or the single op there).
  void collect_counterparts(std::uint32_t r, std::uint32_t l, std::uint32_t head) {
    const auto& nodes = tables(r).nodes;
    for (std::uint32_t op = head; op + 1 < nodes.size(); ++op) {
      if (op > head && (!(nodes[op].flags & OpNode::kGrouped) || (nodes[op].flags & OpNode::kGroupFirst) || nodes[op].lane != l)) break;
      const Counterpart& other = matching_.ranks[r].counterparts[nodes[op].channel];
      if (nodes[op].kind == OpNode::Kind::Message) collect_peer(r, l, op, other.rank, other.channel);
      else collect_members(r, l, op, other.rank);
      if (!(nodes[head].flags & OpNode::kGrouped)) break;
    }
  }

  void collect_peer(std::uint32_t r, std::uint32_t l, std::uint32_t op, std::uint32_t other, std::uint32_t channel) {
    const std::uint32_t k = tables(r).nodes[op].sequence;
    if (other == Counterpart::kNobody || tables(other).channels[channel].ops.size() <= k) {
      add(node(r, l), r, op, r, std::nullopt);
      return;
    }
    const std::uint32_t peer = tables(other).channels[channel].ops[k];
    if (!at_head(other, peer)) add(node(r, l), r, op, other, peer);
  }

  void collect_members(std::uint32_t r, std::uint32_t l, std::uint32_t op, std::uint32_t instance) {
    const std::uint32_t k = tables(r).nodes[op].sequence;
    for (const InstanceMember& member : matching_.instances[instance].members) {
      if (member.rank == r) continue;
      if (member.rank == Counterpart::kNobody || member.channel == Counterpart::kNobody || tables(member.rank).channels[member.channel].ops.size() <= k) {
        add(node(r, l), r, op, r, std::nullopt);
        continue;
      }
      const std::uint32_t peer = tables(member.rank).channels[member.channel].ops[k];
      if (!at_head(member.rank, peer)) add(node(r, l), r, op, member.rank, peer);
    }
  }

  // Has the op been posted: it is (in the group) at the head of its lane, and the lane waits for counterparts.
  bool at_head(std::uint32_t r, std::uint32_t op) const {
    if (loop_.ended(r, op)) return true;
    const auto blocked = loop_.blocked(r, tables(r).nodes[op].lane);
    if (blocked.wait != Loop::Wait::Counterpart) return false;
    return blocked.head == op || group_of(r, blocked.head) == group_of(r, op);
  }
  std::uint32_t group_of(std::uint32_t r, std::uint32_t op) const {
    const Op& o = schedule_.ops[op_id(r, op).value];
    return o.group.valid() ? o.group.value : 0x80000000u | op;
  }

  std::vector<std::size_t> shortest_cycle() const {
    using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, boost::property<boost::edge_index_t, std::size_t>>;
    Graph graph(first_node_.back());
    for (std::size_t i = 0; i < waits_.size(); ++i)
      if (waits_[i].for_op) boost::add_edge(waits_[i].node, waits_[i].for_node, i, graph);
    std::vector<std::size_t> best;
    const std::size_t starts = std::min(waits_.size(), kMostSteps / first_node_.back() + 1);
    for (std::size_t start = 0; start < starts; ++start) {
      if (!waits_[start].for_op) continue;
      std::vector<std::size_t> cycle = cycle_through(graph, start);
      if (!cycle.empty() && (best.empty() || cycle.size() < best.size())) best = std::move(cycle);
      if (best.size() == 1 || best.size() == 2) break;
    }
    return best;
  }

  // Shortest way back from the end of wait `start` to its beginning, with `start` in front.
  template <class Graph>
  std::vector<std::size_t> cycle_through(const Graph& graph, std::size_t start) const {
    constexpr std::size_t kUnseen = static_cast<std::size_t>(-1);
    const std::size_t goal = waits_[start].node, source = waits_[start].for_node;
    if (goal == source) return {start};
    std::vector<std::size_t> by(boost::num_vertices(graph), kUnseen);
    struct Record : boost::default_bfs_visitor {
      explicit Record(std::vector<std::size_t>& edges) : by(edges) {}
      void tree_edge(typename Graph::edge_descriptor e, const Graph& g) const { by[boost::target(e, g)] = boost::get(boost::edge_index, g, e); }
      std::vector<std::size_t>& by;
    };
    boost::breadth_first_search(graph, source, boost::visitor(Record(by)));
    if (by[goal] == kUnseen) return {};
    std::vector<std::size_t> back;
    for (std::size_t at = goal; at != source; at = waits_[by[at]].node) back.push_back(by[at]);
    back.push_back(start);
    std::reverse(back.begin(), back.end());
    return back;
  }

  OpId op_id(std::uint32_t r, std::uint32_t op) const { return OpId(schedule_.programs[tables(r).program.value].first_op.value + op); }
  std::string op_name(std::uint32_t r, std::uint32_t op) const {
    return fmt::format("rank {} `{}`", matching_.ranks[r].rank.value, print_op(schedule_, op_id(r, op)));
  }

  // "rank 0 `3 send ...` waits for rank 1 `3 recv ...`, behind `2 send ...`"
  std::string describe(const Wait& wait) const {
    std::string out = op_name(wait.rank, wait.op);
    if (!wait.for_op) return out + " waits for a counterpart that nobody issues";
    const auto stands_at = [&](std::uint32_t op) { return print_op(schedule_, op_id(wait.for_rank, op)); };
    out += " waits for " + op_name(wait.for_rank, *wait.for_op);
    const std::uint32_t lane = wait.for_node - first_node_[wait.for_rank];
    if (lane == tables(wait.for_rank).lanes)
      return out + fmt::format(", which its host has not issued: the host stands at `{}`", stands_at(loop_.host_position(wait.for_rank)));
    const std::uint32_t head = loop_.blocked(wait.for_rank, lane).head;
    if (head == *wait.for_op) return out;
    const bool one_group = group_of(wait.for_rank, head) == group_of(wait.for_rank, *wait.for_op);
    return out + fmt::format(", {} `{}`", one_group ? "in the group of" : "behind", stands_at(head));
  }

  std::vector<std::uint32_t> ranks_in(const std::vector<std::size_t>& edges) const {
    std::vector<std::uint32_t> ranks;
    for (std::size_t edge : edges) ranks.push_back(matching_.ranks[waits_[edge].rank].rank.value);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  std::string who_waits(const std::vector<std::size_t>& cycle) const {
    const std::vector<std::uint32_t> ranks = ranks_in(cycle);
    const bool folded = matching_.ranks.size() < ranks_with_ops();
    if (ranks.size() == 1) return fmt::format("ops of rank {}{} wait for each other", ranks[0], folded ? " (and of the ranks like it)" : "");
    if (ranks.size() > kMostNamed) return fmt::format("{} ranks wait for each other", ranks.size());
    const std::span<const std::uint32_t> front(ranks.data(), ranks.size() - 1);
    return fmt::format("ranks {} and {}{} wait for each other", fmt::join(front, ", "), ranks.back(), folded ? " (and the ranks like them)" : "");
  }
  std::size_t ranks_with_ops() const {
    return static_cast<std::size_t>(std::count_if(matching_.stand_in.begin(), matching_.stand_in.end(),
                                                  [](std::uint32_t r) { return r != Counterpart::kNobody; }));
  }

  // What the blocked ranks outside the cycle wait for, the first of them: for another rank where there is such a wait.
  void append_positions(const std::vector<std::size_t>& cycle, Diagnostic& out) const {
    std::vector<bool> told(matching_.ranks.size(), false);
    for (std::size_t edge : cycle) told[waits_[edge].rank] = true;
    std::size_t shown = 0;
    for (std::size_t i = 0; i < waits_.size();) {
      const std::uint32_t rank = waits_[i].rank;
      std::size_t best = i;
      for (; i < waits_.size() && waits_[i].rank == rank; ++i)
        if (waits_[best].for_op && waits_[best].for_rank == rank && (!waits_[i].for_op || waits_[i].for_rank != rank)) best = i;
      if (told[rank]) continue;
      if (++shown > kMostNamed) return out.details.push_back("... more ranks wait");
      out.details.push_back(describe(waits_[best]));
    }
  }

  static constexpr std::size_t kMostNamed = 16;
  static constexpr std::size_t kMostSteps = 50'000'000;  // of the search for the shortest cycle: below a second
  const Schedule& schedule_;
  const Matching& matching_;
  const Loop& loop_;
  std::vector<std::uint32_t> first_node_;
  std::vector<Wait> waits_;
};

std::optional<Diagnostic> explain(const Schedule& schedule, const Matching& matching) {
  ZeroCosts costs{matching};
  std::vector<OpTimes> times(Loop::time_slots(matching));
  Loop loop(matching, costs, 1, times.data());
  if (loop.run()) return std::nullopt;
  return WaitGraph(schedule, matching, loop).explain();
}

// Small enough to be explained rank by rank.
constexpr std::size_t kMostRanks = 4096, kMostOps = 1u << 22;
std::size_t ops_of_all_ranks(const Schedule& schedule) {
  std::size_t ops = 0;
  for (const Program& program : schedule.programs) ops += std::size_t{program.op_count} * program.ranks.size();
  return ops;
}

}  // namespace

std::vector<Diagnostic> find_deadlock(const Schedule& schedule) {
  std::optional<Diagnostic> found = explain(schedule, match(schedule, Folding::Exact));
  if (!found) return {};
  if (schedule.mesh.size() <= kMostRanks && ops_of_all_ranks(schedule) <= kMostOps) found = explain(schedule, match(schedule, Folding::None));
  invariant(found.has_value(), "folding is exact: what hangs folded hangs expanded");
  return {*std::move(found)};
}

}  // namespace steptwin
