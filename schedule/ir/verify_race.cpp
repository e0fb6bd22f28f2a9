// RACE: any two accesses of one rank that overlap in bytes, one of them writing, are ordered by lane, dependency or HostWait.
//
// Vector clocks per lane. Clock[l] of an op = how many ops of lane l have surely ended when it starts. It is the largest of
//   - the clock at the end of the op before it on its lane (a lane is a FIFO);
//   - the clocks at the end of its dependencies;
//   - the host's clock: everything known at the end of the targets of the HostWaits issued before it.
// Ops of a group start with the largest clock of its members and end together: for the lane and for dependents they count as
// one. An op at position p of lane l is ordered before another one when the other's clock[l] > p. Order that exists only through
// another rank, or only through the FIFO of a communicator, does not count: an executor adds no wait for it.
//
// Per byte it is enough to remember the last write and, per lane, the last read since: an op ordered after these is ordered
// after all earlier ones. So the check is linear in accesses, times lanes for the clocks.
#include <fmt/format.h>

#include <algorithm>

#include "schedule/ir/byte_map.h"
#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

using Clock = std::span<std::uint32_t>;

void join(Clock into, std::span<const std::uint32_t> other) {
  for (std::size_t l = 0; l < into.size(); ++l) into[l] = std::max(into[l], other[l]);
}

// The clocks of one program. positions count per lane.
class LaneClocks {
 public:
  LaneClocks(const Schedule& schedule, const Program& program)
      : s_(schedule),
        program_(program),
        lanes_(program.lanes.size()),
        start_(program.op_count * lanes_),
        end_(program.op_count * lanes_),
        position_(program.op_count, 0),
        host_(lanes_, 0),
        lane_end_(lanes_ * lanes_, 0),
        lane_count_(lanes_, 0) {
    for (std::uint32_t i = 0; i < program.op_count;) i = advance(i);
  }

  // Is `earlier` surely ended when `later` (both local) starts?
  bool ordered(std::uint32_t earlier, std::uint32_t later) const {
    const LaneId lane = op(earlier).lane;
    return !lane.valid() || start_[later * lanes_ + lane.value] > position_[earlier];  // a HostWait ends before anything later is issued
  }
  LaneId lane(std::uint32_t local) const { return op(local).lane; }

 private:
  const Op& op(std::uint32_t local) const { return s_.ops[program_.first_op.value + local]; }
  Clock start(std::uint32_t local) { return {start_.data() + local * lanes_, lanes_}; }
  Clock end(std::uint32_t local) { return {end_.data() + local * lanes_, lanes_}; }

  // Sets the clocks of the op at i, or of the whole group that begins there; returns the op after it.
  std::uint32_t advance(std::uint32_t i) {
    if (const auto* wait = std::get_if<HostWait>(&op(i).body)) {
      join(host_, end(wait->target.value - program_.first_op.value));
      join(start(i), host_), join(end(i), host_);
      return i + 1;
    }
    std::uint32_t last = i + 1;
    const GroupId group = op(i).group;
    while (group.valid() && last < program_.op_count && op(last).group == group) ++last;
    const std::uint32_t lane = op(i).lane.value;
    join(start(i), host_);
    join(start(i), {lane_end_.data() + lane * lanes_, lanes_});
    for (std::uint32_t k = i; k < last; ++k) {
      position_[k] = lane_count_[lane]++;
      for (OpId dep : s_.deps_of(OpId(program_.first_op.value + k))) join(start(i), end(dep.value - program_.first_op.value));
    }
    for (std::uint32_t k = i; k < last; ++k) {
      if (k > i) join(start(k), start(i));
      join(end(k), start(i));
      end(k)[lane] = lane_count_[lane];
    }
    join({lane_end_.data() + lane * lanes_, lanes_}, end(i));
    return last;
  }

  const Schedule& s_;
  const Program& program_;
  const std::size_t lanes_;
  std::vector<std::uint32_t> start_, end_;  // [op * lanes + lane]
  std::vector<std::uint32_t> position_;     // [op] on its lane
  std::vector<std::uint32_t> host_, lane_end_, lane_count_;
};

struct Uses {
  OpId writer;
  std::vector<OpId> readers;  // since the writer; the last one per lane
};

class RaceChecker {
 public:
  RaceChecker(const Schedule& schedule, const CommTables& tables, const Program& program, const LaneClocks& clocks, RankId rank,
              Findings& findings)
      : s_(schedule), tables_(tables), program_(program), clocks_(clocks), rank_(rank), findings_(findings) {
    maps_.assign(program.buffers.size(), ByteMap<Uses>(Uses{}));
  }

  void check(OpId id) {
    conflict_ = OpId();
    const Op& op = s_.ops[id.value];
    if (op.guard.valid()) read(id, {op.guard, AccessMode::Read, {}});
    for (const Access& access : s_.accesses_of(id)) {
      if (writes(access.mode))
        write(id, access);
      else if (reads(access.mode))
        read(id, access);
    }
    if (conflict_.valid()) report(id);
  }

 private:
  ByteRange range(const Access& access) const { return touched_bytes(s_, tables_, program_, access, rank_); }
  std::uint32_t local(OpId id) const { return id.value - program_.first_op.value; }

  void against(OpId earlier, OpId id, const Access& access) {
    if (!earlier.valid() || earlier == id || conflict_.valid() || clocks_.ordered(local(earlier), local(id))) return;
    conflict_ = earlier;
    access_ = access;
  }

  void read(OpId id, const Access& access) {
    const LaneId lane = clocks_.lane(local(id));
    maps_[access.buffer.value].each(range(access), [&](Uses& uses) {
      against(uses.writer, id, access);
      const auto same_lane = [&](OpId reader) { return clocks_.lane(local(reader)) == lane; };
      const auto it = std::find_if(uses.readers.begin(), uses.readers.end(), same_lane);
      if (it == uses.readers.end())
        uses.readers.push_back(id);
      else
        *it = id;
    });
  }

  void write(OpId id, const Access& access) {
    const ByteRange bytes = range(access);
    auto& map = maps_[access.buffer.value];
    map.each(bytes, [&](const Uses& uses) {
      for (OpId reader : uses.readers) against(reader, id, access);
      against(uses.writer, id, access);
    });
    map.assign(bytes, {id, {}});
  }

  bool touches_for_write(OpId id, BufferId buffer) const {
    const auto accesses = s_.accesses_of(id);
    return std::any_of(accesses.begin(), accesses.end(), [&](const Access& a) { return a.buffer == buffer && writes(a.mode); });
  }

  void report(OpId id) {
    const bool wrote = touches_for_write(conflict_, access_.buffer);
    const GroupId group = s_.ops[id.value].group;
    const bool one_group = group.valid() && s_.ops[conflict_.value].group == group;
    const OpId related[] = {conflict_};
    findings_.at_op(
        id, "RACE",
        fmt::format("it {} {}, which op {} {}, and nothing on this rank orders the two", writes(access_.mode) ? "writes" : "reads",
                    s_.buffer_name(program_, access_.buffer), local(conflict_), wrote ? "writes" : "reads"),
        one_group ? "ops of a group run at once: leave one of them out of the group"
                  : fmt::format("add `after {}` to it, or put both on one lane", local(conflict_)),
        related);
  }

  const Schedule& s_;
  const CommTables& tables_;
  const Program& program_;
  const LaneClocks& clocks_;
  const RankId rank_;
  Findings& findings_;
  std::vector<ByteMap<Uses>> maps_;
  OpId conflict_;  // first one found for the op being checked
  Access access_;
};

}  // namespace

void check_races(const Schedule& s, const CommTables& tables, Findings& findings) {
  for (const Program& program : s.programs) {
    if (findings.full()) return;
    const LaneClocks clocks(s, program);
    for (RankId rank : sample_ranks(s, program)) {
      const std::size_t before = findings.all().size();
      RaceChecker checker(s, tables, program, clocks, rank, findings);
      for (std::uint32_t i = 0; i < program.op_count && !findings.full(); ++i) checker.check(OpId(program.first_op.value + i));
      if (findings.all().size() > before) break;  // the next sample would repeat it
    }
  }
}

}  // namespace steptwin
