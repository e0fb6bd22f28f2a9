// GUARD: the guard of a communication op holds the same value on every member, so that all of them skip it or none does. It is
// the result of an all-gather, all-reduce or broadcast over at least the members of the op, or computed from such results only.
#include <fmt/format.h>

#include <map>

#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

class GuardChecker {
 public:
  GuardChecker(const Schedule& schedule, const CommTables& tables, const Program& program, Findings& findings)
      : s_(schedule), tables_(tables), program_(program), findings_(findings), agreed_(program.buffers.size()) {}

  void check(OpId id) {
    const Op& op = s_.ops[id.value];
    const CommId comm = comm_of(op.body);
    if (op.guard.valid() && comm.valid() && !covers(agreed_[op.guard.value], comm)) report(id, comm);
    const CommId result = agreed_result(id);
    for (const Access& access : s_.accesses_of(id))
      if (writes(access.mode)) agreed_[access.buffer.value] = result;
  }

 private:
  // The communicator whose members all compute the same results in this op; none = a rank's own value.
  CommId agreed_result(OpId id) const {
    const OpBody& body = s_.ops[id.value].body;
    const bool local = std::holds_alternative<Compute>(body) || std::holds_alternative<Copy>(body);
    if (local) return agreed_inputs(id);
    const bool same_for_all =
        std::holds_alternative<AllGather>(body) || std::holds_alternative<AllReduce>(body) || std::holds_alternative<Broadcast>(body);
    return same_for_all ? comm_of(body) : CommId();
  }

  CommId agreed_inputs(OpId id) const {
    CommId common;
    for (const Access& access : s_.accesses_of(id)) {
      if (!reads(access.mode)) continue;
      const CommId input = agreed_[access.buffer.value];
      if (!input.valid() || (common.valid() && common != input)) return CommId();
      common = input;
    }
    return common;
  }

  // Do the instances of `wide` hold all members of the instances of `comm`, for every rank of the program?
  bool covers(CommId wide, CommId comm) {
    if (!wide.valid()) return false;
    const auto [it, fresh] = covers_.try_emplace({wide, comm}, true);
    if (fresh) it->second = compute_covers(*tables_.comms[wide.value], *tables_.comms[comm.value]);
    return it->second;
  }

  bool compute_covers(const CommInstances& wide, const CommInstances& narrow) const {
    std::vector<bool> done(narrow.members.size(), false);
    for (RankId rank : program_.ranks) {
      const std::uint32_t instance = narrow.instance_of[rank.value];
      if (done[instance]) continue;
      done[instance] = true;
      for (RankId member : narrow.members[instance])
        if (wide.instance_of[member.value] != wide.instance_of[rank.value]) return false;
    }
    return true;
  }

  void report(OpId id, CommId comm) {
    const BufferId guard = s_.ops[id.value].guard;
    findings_.at_op(
        id, "GUARD",
        fmt::format("its guard {} is not the result of a collective over the members of {}, so members could disagree on whether it runs",
                    s_.buffer_name(program_, guard), s_.communicators[comm.value].name),
        "reduce the value over all members first (all_reduce max), or leave the guard out");
  }

  const Schedule& s_;
  const CommTables& tables_;
  const Program& program_;
  Findings& findings_;
  std::vector<CommId> agreed_;  // [buffer] -> communicator over which its value is equal
  std::map<std::pair<CommId, CommId>, bool> covers_;
};

}  // namespace

void check_guards(const Schedule& s, const CommTables& tables, Findings& findings) {
  for (const Program& program : s.programs) {
    GuardChecker checker(s, tables, program, findings);
    for (std::uint32_t i = 0; i < program.op_count && !findings.full(); ++i) checker.check(OpId(program.first_op.value + i));
  }
}

}  // namespace steptwin
