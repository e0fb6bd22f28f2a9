#include "traces/check_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "schedule/ir/matching.h"
#include "schedule/ir/text.h"

namespace steptwin {
namespace {

class TraceCheck {
 public:
  TraceCheck(const Schedule& schedule, const Trace& trace, std::uint32_t steps, std::size_t limit)
      : schedule_(schedule), trace_(trace), steps_(steps), limit_(limit), matching_(match(schedule, Folding::None)) {}

  std::vector<Diagnostic> run() {
    if (!collect()) return std::move(problems_);
    for (std::uint32_t step = 0; step < steps_; ++step) {
      for (std::uint32_t rank = 0; rank < matching_.ranks.size(); ++rank) {
        check_host(rank, step);
        check_lanes(rank, step);
        check_edges(rank, step);
        check_messages(rank, step);
      }
      for (const Instance& instance : matching_.instances) check_collectives(instance, step);
    }
    return std::move(problems_);
  }

 private:
  const ProgramTables& tables(std::uint32_t rank) const { return matching_.tables[matching_.ranks[rank].tables]; }
  std::uint32_t ops(std::uint32_t rank) const { return static_cast<std::uint32_t>(tables(rank).nodes.size() - 1); }
  OpId id(std::uint32_t rank, std::uint32_t op) const { return OpId(schedule_.programs[tables(rank).program.value].first_op.value + op); }
  const Span& at(std::uint32_t rank, std::uint32_t step, std::uint32_t op) const { return *spans_[rank][std::size_t{step} * ops(rank) + op]; }

  void problem(const char* code, std::uint32_t rank, std::uint32_t step, std::uint32_t op, const std::string& what) {
    if (problems_.size() >= limit_) return;
    Diagnostic diagnostic;
    diagnostic.code = code;
    diagnostic.text = fmt::format("rank {} step {} op `{}`: {}", matching_.ranks[rank].rank.value, step, print_op(schedule_, id(rank, op)), what);
    problems_.push_back(std::move(diagnostic));
  }

  // Every op of every rank in every step, by way of its stand-in. False: some are missing, so nothing else can be said.
  bool collect() {
    std::unordered_map<std::uint32_t, std::vector<const Span*>> of_rank;
    for (const Span& span : trace_.spans) of_rank[span.rank.value].push_back(&span);
    spans_.resize(matching_.ranks.size());
    for (std::uint32_t r = 0; r < matching_.ranks.size(); ++r) {
      const std::uint32_t mesh_rank = matching_.ranks[r].rank.value;
      const RankId stand_in = mesh_rank < trace_.stand_in.size() ? trace_.stand_in[mesh_rank] : matching_.ranks[r].rank;
      place_spans(r, of_rank[stand_in.value]);
    }
    return problems_.empty();
  }

  void place_spans(std::uint32_t r, const std::vector<const Span*>& found) {
    const std::uint32_t first = id(r, 0).value;
    spans_[r].assign(std::size_t{steps_} * ops(r), nullptr);
    for (const Span* span : found) {
      const std::uint32_t op = span->op.value - first;
      if (span->step >= steps_ || op >= ops(r)) continue;
      const Span*& place = spans_[r][std::size_t{span->step} * ops(r) + op];
      if (place != nullptr) problem("SPAN", r, span->step, op, "has two spans");
      place = span;
    }
    for (std::size_t i = 0; i < spans_[r].size(); ++i) {
      const auto step = static_cast<std::uint32_t>(i / ops(r)), op = static_cast<std::uint32_t>(i % ops(r));
      if (spans_[r][i] == nullptr) problem("SPAN", r, step, op, "has no span");
    }
  }

  void check_host(std::uint32_t rank, std::uint32_t step) {
    SimTime issued = at_ns(INT64_MIN), before = step == 0 ? at_ns(INT64_MIN) : last_end(rank, step - 1);
    for (std::uint32_t op = 0; op < ops(rank); ++op) {
      const Span& span = at(rank, step, op);
      const bool host_wait = tables(rank).nodes[op].kind == OpNode::Kind::HostWait;
      if (span.issue < issued) problem("SPAN", rank, step, op, "is issued before the op ahead of it");
      if (span.start < span.ready || span.end < span.start) problem("SPAN", rank, step, op, "its times run backwards");
      if (!host_wait && span.ready < issued) problem("SPAN", rank, step, op, "is ready before the issuing thread came to it");
      if (!host_wait && span.ready < before) problem("STEP", rank, step, op, "is ready before the repetition ahead has ended");
      if (span.end < span.issue) problem("SPAN", rank, step, op, "ends before it is issued");
      if (host_wait && span.end < at(rank, step, tables(rank).nodes[op].sequence).end)
        problem("DEPENDENCY", rank, step, op, "returns before the op that it waits for has ended");
      issued = host_wait ? span.end : span.issue;
    }
  }

  SimTime last_end(std::uint32_t rank, std::uint32_t step) const {
    SimTime last = at_ns(INT64_MIN);
    for (std::uint32_t op = 0; op < ops(rank); ++op)
      if (tables(rank).nodes[op].kind != OpNode::Kind::HostWait) last = std::max(last, at(rank, step, op).end);
    return last;
  }

  void check_lanes(std::uint32_t rank, std::uint32_t step) {
    const ProgramTables& t = tables(rank);
    for (std::uint32_t lane = 0; lane < t.lanes; ++lane) {
      for (std::uint32_t i = t.lane_begin[lane] + 1; i < t.lane_begin[lane + 1]; ++i) {
        const std::uint32_t before = t.lane_ops[i - 1], op = t.lane_ops[i];
        const std::uint8_t flags = t.nodes[op].flags;
        const bool same_group = (flags & OpNode::kGrouped) != 0 && (flags & OpNode::kGroupFirst) == 0;
        if (same_group && at(rank, step, op).ready != at(rank, step, before).ready) problem("LANE", rank, step, op, "is not ready with its group");
        if (same_group && at(rank, step, op).end != at(rank, step, before).end) problem("MEMBER", rank, step, op, "does not end with its group");
        if (!same_group && at(rank, step, op).ready < at(rank, step, before).end)
          problem("LANE", rank, step, op, fmt::format("is ready before op {} on its lane has ended", before));
      }
    }
  }

  void check_edges(std::uint32_t rank, std::uint32_t step) {
    const ProgramTables& t = tables(rank);
    for (std::uint32_t op = 0; op < ops(rank); ++op) {
      const Span& span = at(rank, step, op);
      for (std::uint32_t d = t.nodes[op].dep_begin; d < t.dep_end(op); ++d)
        if (span.ready < at(rank, step, t.deps[d]).end) problem("DEPENDENCY", rank, step, op, fmt::format("is ready before op {} has ended", t.deps[d]));
    }
    for (const Channel& channel : t.channels) {
      for (std::size_t k = 1; k < channel.ops.size(); ++k) {
        const std::uint32_t op = channel.ops[k], before = channel.ops[k - 1];
        if ((t.nodes[op].flags & OpNode::kFollows) == 0 && at(rank, step, op).ready < at(rank, step, before).end)
          problem("FIFO", rank, step, op, fmt::format("is ready before op {} of its communicator has ended", before));
      }
    }
  }

  void check_pair(std::uint32_t rank, std::uint32_t op, std::uint32_t other, std::uint32_t other_op, std::uint32_t step) {
    const Span &mine = at(rank, step, op), &theirs = at(other, step, other_op);
    if (mine.start != theirs.start || mine.start < theirs.ready) problem("MEMBER", rank, step, op, "does not start with its counterpart");
    const auto grouped = [&](std::uint32_t r, std::uint32_t o) { return (tables(r).nodes[o].flags & OpNode::kGrouped) != 0; };
    if (!grouped(rank, op) && !grouped(other, other_op) && mine.end != theirs.end) problem("MEMBER", rank, step, op, "does not end with its counterpart");
  }

  // From the sender's side. The end of an ungrouped op whose counterpart is in a group lies within the group.
  void check_messages(std::uint32_t rank, std::uint32_t step) {
    const ProgramTables& t = tables(rank);
    for (std::size_t c = 0; c < t.channels.size(); ++c) {
      const Counterpart& peer = matching_.ranks[rank].counterparts[c];
      if (t.channels[c].collective || !t.channels[c].send || peer.rank == Counterpart::kNobody) continue;
      const Channel& theirs = tables(peer.rank).channels[peer.channel];
      for (std::size_t k = 0; k < std::min(t.channels[c].ops.size(), theirs.ops.size()); ++k)
        check_pair(rank, t.channels[c].ops[k], peer.rank, theirs.ops[k], step);
    }
  }

  void check_collectives(const Instance& instance, std::uint32_t step) {
    const InstanceMember& first = instance.members.front();
    const Channel& reference = tables(first.rank).channels[first.channel];
    for (const InstanceMember& member : instance.members) {
      const Channel& channel = tables(member.rank).channels[member.channel];
      for (std::size_t k = 0; k < std::min(channel.ops.size(), reference.ops.size()); ++k)
        check_pair(first.rank, reference.ops[k], member.rank, channel.ops[k], step);
    }
  }

  const Schedule& schedule_;
  const Trace& trace_;
  std::uint32_t steps_;
  std::size_t limit_;
  Matching matching_;
  std::vector<std::vector<const Span*>> spans_;  // [rank][step * ops + op]
  std::vector<Diagnostic> problems_;
};

}  // namespace

std::vector<Diagnostic> check_trace(const Schedule& schedule, const Trace& trace, std::uint32_t steps, std::size_t limit) {
  return TraceCheck(schedule, trace, steps, limit).run();
}

}  // namespace steptwin
