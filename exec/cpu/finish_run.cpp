#include "exec/cpu/finish_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "exec/present.h"
#include "exec/program_order.h"
#include "traces/breakdown.h"

namespace steptwin {
namespace {

// The buffer of another program that bears the name of this one's: members of a communicator may run different programs. Its buffer count
// when there is none.
std::uint32_t same_buffer(const Program& program, std::uint32_t buffer, const Program& other) {
  if (&program == &other) return buffer;
  const NameId name = program.buffers[buffer].name;
  const auto at = std::find_if(other.buffers.begin(), other.buffers.end(), [&](const Buffer& b) { return b.resident && b.name.valid() && b.name == name; });
  return static_cast<std::uint32_t>(at - other.buffers.begin());
}

// Makes the result of all ranks. `parts` by rank of the matching, times on one axis.
class Assembly {
 public:
  Assembly(const Schedule& schedule, const ExecuteOptions& options, const Matching& matching, std::vector<RankPart> parts)
      : schedule_(schedule), options_(options), matching_(matching), parts_(std::move(parts)) {}

  bool join_transfers();  // true: a time has changed
  void obey_order();
  ExecutionResult result(Outcome outcome, std::uint64_t ops);

 private:
  const ProgramTables& tables(std::uint32_t rank) const { return matching_.tables[matching_.ranks[rank].tables]; }
  const Program& program(std::uint32_t rank) const { return schedule_.programs[tables(rank).program.value]; }
  Span* span(std::uint32_t rank, std::uint32_t step, std::uint32_t op);
  bool join(const std::vector<Span*>& members, bool grouped);
  bool join_messages(std::uint32_t rank, std::uint32_t step);
  bool join_collectives(const Instance& instance, std::uint32_t step);
  bool obey_order(std::uint32_t rank, std::uint32_t step, const ProgramOrder& order);
  bool is_grouped(std::uint32_t rank, std::uint32_t op) const { return (tables(rank).nodes[op].flags & OpNode::kGrouped) != 0; }
  std::int64_t origin() const;
  void add_times(Trace& trace) const;
  std::vector<double> losses() const;
  std::vector<NamedValues> parameters() const;

  const Schedule& schedule_;
  const ExecuteOptions& options_;
  const Matching& matching_;
  std::vector<RankPart> parts_;
};

// Spans lie by step and op; of a step that was broken off some are missing.
Span* Assembly::span(std::uint32_t rank, std::uint32_t step, std::uint32_t op) {
  std::vector<Span>& spans = parts_[rank].spans;
  const OpId id(program(rank).first_op.value + op);
  const auto at = std::lower_bound(spans.begin(), spans.end(), std::pair(step, id),
                                   [](const Span& s, const auto& wanted) { return std::pair(s.step, s.op) < wanted; });
  return at != spans.end() && at->step == step && at->op == id ? &*at : nullptr;
}

// Members of a group end with their group, so their ends stay.
bool Assembly::join(const std::vector<Span*>& members, bool grouped) {
  if (std::find(members.begin(), members.end(), nullptr) != members.end()) return false;
  SimTime start = at_ns(INT64_MIN), end = at_ns(INT64_MAX);
  for (const Span* s : members) start = std::max(start, s->ready), end = std::min(end, s->end);
  for (const Span* s : members) end = std::max(end, s->issue);
  bool changed = false;
  for (Span* s : members) {
    const SimTime own_end = std::max(start, grouped ? s->end : end);
    changed = changed || s->start != start || s->end != own_end;
    s->start = start, s->end = own_end;
  }
  return changed;
}

bool Assembly::join_messages(std::uint32_t rank, std::uint32_t step) {
  const ProgramTables& t = tables(rank);
  bool changed = false;
  for (std::size_t c = 0; c < t.channels.size(); ++c) {
    const Counterpart& peer = matching_.ranks[rank].counterparts[c];
    if (t.channels[c].collective || !t.channels[c].send || peer.rank == Counterpart::kNobody) continue;
    const std::vector<std::uint32_t>&own = t.channels[c].ops, &theirs = tables(peer.rank).channels[peer.channel].ops;
    for (std::size_t k = 0; k < std::min(own.size(), theirs.size()); ++k) {
      const bool grouped = is_grouped(rank, own[k]) || is_grouped(peer.rank, theirs[k]);
      changed = join({span(rank, step, own[k]), span(peer.rank, step, theirs[k])}, grouped) || changed;
    }
  }
  return changed;
}

bool Assembly::join_collectives(const Instance& instance, std::uint32_t step) {
  bool changed = false;
  for (std::size_t k = 0;; ++k) {
    std::vector<Span*> members;
    bool grouped = false;
    for (const InstanceMember& member : instance.members) {
      if (member.rank == Counterpart::kNobody || member.channel == Counterpart::kNobody) return changed;
      const std::vector<std::uint32_t>& ops = tables(member.rank).channels[member.channel].ops;
      if (k >= ops.size()) return changed;
      members.push_back(span(member.rank, step, ops[k]));
      grouped = grouped || is_grouped(member.rank, ops[k]);
    }
    changed = join(members, grouped) || changed;
  }
}

bool Assembly::join_transfers() {
  bool changed = false;
  for (std::uint32_t step = 0; step < options_.steps; ++step) {
    for (std::uint32_t r = 0; r < parts_.size(); ++r) changed = join_messages(r, step) || changed;
    for (const Instance& instance : matching_.instances) changed = join_collectives(instance, step) || changed;
  }
  return changed;
}

// Clocks of several hosts, or devices, agree to within their uncertainty only: a time that contradicts an inequality of schedule.h is moved
// up to it. Times only grow and no op waits for itself, so this comes to an end.
void Assembly::obey_order() {
  for (const RankPart& part : parts_)
    if (part.spans.size() != std::size_t{options_.steps} * program(static_cast<std::uint32_t>(&part - parts_.data())).op_count) return;
  for (bool changed = true; changed;) {
    changed = false;
    for (std::uint32_t r = 0; r < parts_.size(); ++r) {
      const ProgramOrder order(schedule_, tables(r));
      for (std::uint32_t step = 0; step < options_.steps; ++step) changed = obey_order(r, step, order) || changed;
    }
    changed = join_transfers() || changed;
  }
}

bool Assembly::obey_order(std::uint32_t rank, std::uint32_t step, const ProgramOrder& order) {
  bool changed = false;
  const auto raise = [&](SimTime& time, SimTime least) {
    if (time < least) time = least, changed = true;
  };
  std::vector<SimTime> lane_end(order.lanes(), at_ns(INT64_MIN));
  for (std::uint32_t op = 0; step > 0 && op < order.ops(); ++op)
    if (!order.is_host_wait(op)) std::fill(lane_end.begin(), lane_end.end(), std::max(lane_end.front(), span(rank, step - 1, op)->end));
  SimTime issued = at_ns(INT64_MIN);
  for (std::uint32_t first = 0; first < order.ops(); first = order.last_of_unit(first) + 1) {
    const std::uint32_t last = order.last_of_unit(first);
    if (order.is_host_wait(first)) {
      Span& wait = *span(rank, step, first);
      raise(wait.issue, issued);
      raise(wait.end, std::max({wait.issue, wait.start, span(rank, step, order.node(first).sequence)->end}));
      issued = wait.end;
      continue;
    }
    SimTime ready = lane_end[order.lane(first)], end = at_ns(INT64_MIN);
    for (std::uint32_t op = first; op <= last; ++op) {
      Span& s = *span(rank, step, op);
      raise(s.issue, issued);
      issued = s.issue;
      ready = std::max({ready, s.ready, s.issue});
      order.each_edge(op, [&](std::uint32_t before) { ready = std::max(ready, span(rank, step, before)->end); });
    }
    for (std::uint32_t op = first; op <= last; ++op) {
      Span& s = *span(rank, step, op);
      raise(s.ready, ready), raise(s.start, ready), raise(s.end, s.start);
      end = std::max(end, s.end);
    }
    for (std::uint32_t op = first; op <= last; ++op) raise(span(rank, step, op)->end, end);
    lane_end[order.lane(first)] = end;
  }
  return changed;
}

std::int64_t Assembly::origin() const {
  std::int64_t first = INT64_MAX;
  for (const RankPart& part : parts_) {
    for (const Span& span : part.spans) first = std::min({first, ns(span.issue), ns(span.start)});
    if (!part.samples.empty()) first = std::min(first, ns(part.samples.front().at));
  }
  return first == INT64_MAX ? 0 : first;
}

// As the simulator reports them: one repetition: the makespan; else the distance of the last two ends of the slowest rank.
void Assembly::add_times(Trace& trace) const {
  std::int64_t first = INT64_MAX, last = 0, before = INT64_MAX;
  bool whole = true;
  for (std::uint32_t r = 0; r < parts_.size(); ++r) {
    std::vector<std::int64_t> ends(options_.steps);
    for (const Span& span : parts_[r].spans) {
      first = std::min(first, ns(span.start));
      ends[span.step] = std::max(ends[span.step], ns(span.end));
    }
    whole = whole && parts_[r].spans.size() == std::size_t{options_.steps} * program(r).op_count;
    if (ends.empty() || ends.back() <= last) continue;
    last = ends.back();
    before = options_.steps > 1 ? ends[options_.steps - 2] : INT64_MAX;
  }
  if (first == INT64_MAX) return;
  const std::int64_t start = before == INT64_MAX ? first : before;
  trace.makespan = Duration(std::max<std::int64_t>(0, last - first));
  trace.step_time = Duration(std::max<std::int64_t>(0, last - start));
  for (std::uint32_t r = 0; whole && r < parts_.size(); ++r) {
    const std::span<const Span> own = std::span<const Span>(parts_[r].spans).last(program(r).op_count);
    trace.breakdowns.push_back(break_down(schedule_, parts_[r].rank, own, at_ns(start), trace.step_time));
    trace.largest_rank_span = std::max(trace.largest_rank_span, trace.breakdowns.back().rank_span);
  }
}

std::vector<double> Assembly::losses() const {
  std::vector<double> result;
  for (std::uint32_t step = options_.warm_up; step < options_.warm_up + options_.steps; ++step) {
    double sum = 0;
    std::size_t count = 0;
    for (const RankPart& part : parts_) {
      for (const float loss : part.losses[step]) sum += static_cast<double>(loss);
      count += part.losses[step].size();
    }
    if (count > 0) result.push_back(sum / static_cast<double>(count));
  }
  return result;
}

// What a rank holds, and of its shards what the other members hold.
std::vector<NamedValues> Assembly::parameters() const {
  std::vector<NamedValues> ranks;
  const HeldRanges ranges(schedule_, matching_);
  for (std::uint32_t r = 0; r < parts_.size() && options_.keep_gradients; ++r) {
    std::vector<TensorShares> shares(parts_.size());
    for (const auto& [buffer, own] : parts_[r].parameters) {
      const std::vector<RankId> holders = ranges.holders(r, program(r).buffers[buffer]);
      for (std::uint32_t other = 0; other < parts_.size(); ++other) {
        if (std::find(holders.begin(), holders.end(), parts_[other].rank) == holders.end()) continue;
        const auto theirs = parts_[other].parameters.find(same_buffer(program(r), buffer, program(other)));
        if (theirs != parts_[other].parameters.end()) shares[other].add(theirs->second);
      }
    }
    ranks.push_back(whole_tensors(shares));
  }
  return ranks;
}

ExecutionResult Assembly::result(Outcome outcome, std::uint64_t ops) {
  ExecutionResult result;
  Trace& trace = result.trace;
  trace.outcome = std::move(outcome);
  trace.engine = "cpu";
  trace.op_count = ops;
  for (const SimRank& rank : matching_.ranks) trace.simulated.push_back(rank.rank);
  for (const std::uint32_t stand_in : matching_.stand_in)
    trace.stand_in.push_back(stand_in == Counterpart::kNobody ? RankId() : matching_.ranks[stand_in].rank);
  const Duration shift(origin());
  for (RankPart& part : parts_) move_times(part, [&](SimTime t) { return t - shift; });
  add_times(trace);
  if (trace.outcome.status == Status::Ok) result.losses = losses();
  std::vector<TensorShares> gradients, hidden;
  for (RankPart& part : parts_) {
    trace.spans.insert(trace.spans.end(), part.spans.begin(), part.spans.end());
    trace.samples.insert(trace.samples.end(), part.samples.begin(), part.samples.end());
    trace.peaks.insert(trace.peaks.end(), part.peaks.begin(), part.peaks.end());
    for (std::size_t s = 0; s < kSpaces; ++s) result.allocated[s].push_back(part.allocated[s]);
    gradients.push_back(std::move(part.gradients));
    hidden.push_back(std::move(part.hidden));
  }
  result.gradients = whole_tensors(gradients);
  result.hidden = whole_tensors(hidden);
  result.parameters = parameters();
  return result;
}

// ---- several processes -----------------------------------------------------------------------------------------------------
std::string part_key(std::uint32_t process) { return fmt::format("part/{}", process); }

// Process 0's: the parts of all, its own first. Nothing: the run was ended meanwhile.
std::optional<ExecutionResult> gather(const Schedule& schedule, const ExecuteOptions& options, std::vector<RankPart> parts,
                                      const RunEnd& end) {
  ProcessGroup& group = *options.group;
  std::uint64_t ops = end.ops;
  std::vector<ProcessNote> notes{{0, group.member(0).host, 0, 0}};
  for (std::uint32_t r = 1; r < group.launch().world; ++r) {
    const auto packed = group.collect(part_key(r), options.stop);
    if (!packed) return std::nullopt;
    const std::size_t head = packed->find('\n');
    ProcessNote note{r, group.member(r).host, 0, 0};
    std::uint64_t theirs = 0;
    int ranks = 0;
    std::sscanf(packed->c_str(), "%lu %ld %ld %d", &theirs, &note.clock_offset, &note.clock_uncertainty, &ranks);
    if (ranks > 0) parts.push_back(unpack_rank_part(packed->substr(head + 1)));
    ops += theirs;
    notes.push_back(std::move(note));
  }
  const Matching whole = match(schedule, Folding::None);
  Assembly assembly(schedule, options, whole, std::move(parts));
  assembly.join_transfers();
  assembly.obey_order();
  ExecutionResult result = assembly.result(end.outcome, ops);
  result.processes = std::move(notes);
  return result;
}

void hand_over(ProcessGroup& group, const std::vector<RankPart>& parts, std::uint64_t ops) {
  const ClockMap& clock = group.clock();
  std::string packed = fmt::format("{} {} {} {}\n", ops, clock.begin.offset, clock.uncertainty(), parts.size());
  if (!parts.empty()) packed += pack(parts.front());
  group.publish(part_key(group.launch().rank), packed);
}

ExecutionResult finish_one_of_several(const Schedule& schedule, const ExecuteOptions& options, std::vector<RankPart> parts,
                                      const RunEnd& end) {
  ProcessGroup& group = *options.group;
  ExecutionResult result;
  result.trace.outcome = end.outcome;
  if (end.outcome.status == Status::Interrupted) return result;
  group.compare_clocks_again();
  const std::int64_t start = std::chrono::duration_cast<Duration>(end.start.time_since_epoch()).count();
  for (RankPart& part : parts) move_times(part, [&](SimTime t) { return at_ns(group.clock().to_lead(start + ns(t))); });
  if (!group.leads()) {
    hand_over(group, parts, end.ops);
    return result;
  }
  if (auto whole = gather(schedule, options, std::move(parts), end)) return std::move(*whole);
  result.trace.outcome.status = Status::Interrupted;
  result.trace.outcome.text = "stopped by a signal";
  return result;
}

}  // namespace

ExecutionResult finish_run(const Schedule& schedule, const ExecuteOptions& options, const Matching& matching, const TrainingState& training,
                           Recorder& recorder, const RunEnd& end) {
  std::vector<RankPart> parts = recorder.take_parts();
  for (std::uint32_t r = 0; r < parts.size(); ++r) training.fill_part(r, parts[r]);
  if (options.group != nullptr) return finish_one_of_several(schedule, options, std::move(parts), end);
  return Assembly(schedule, options, matching, std::move(parts)).result(end.outcome, end.ops);
}

}  // namespace steptwin
