// COMM-ORDER across communicators: two ranks that share an instance of X and an instance of Y issue the collectives on them in
// the same relative order. A warning, because ops on different lanes of a rank may still pass each other in our semantics; an
// error for NCCL when they are on different lanes, where kernels that run at once must start in one order on all ranks
// (specs/schedules.md 7.1, 7.4). Messages are left out: pipelines use their two directions in different order by design.
// Cost: every communicator pair reads the collectives on it once, so linear in ops times communicators.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "schedule/base/digest.h"
#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

class OrderChecker {
 public:
  OrderChecker(const Schedule& schedule, const CommTables& tables, Transport transport, Findings& findings)
      : s_(schedule), tables_(tables), transport_(transport), findings_(findings), collectives_(schedule.programs.size()) {
    for (std::size_t p = 0; p < collectives_.size(); ++p) {
      collectives_[p].resize(tables.comms.size());
      for (std::size_t c = 0; c < tables.comms.size(); ++c)
        for (OpId id : tables.ops[p][c])
          if (is_collective(s_.ops[id.value].body)) collectives_[p][c].push_back(id);
    }
  }

  void check() {
    const std::size_t comms = tables_.comms.size();
    for (std::size_t x = 0; x < comms && !findings_.full(); ++x)
      for (std::size_t y = x + 1; y < comms && !findings_.full(); ++y)
        if (tables_.comms[x] && tables_.comms[y]) check_pair(x, y);
  }

 private:
  CommId comm(OpId op) const { return comm_of(s_.ops[op.value].body); }

  // The collectives of a program on two communicators in issue order; inside a group by communicator, for it starts as one.
  std::vector<OpId> merged(std::size_t program, std::size_t x, std::size_t y) const {
    const auto &a = collectives_[program][x], &b = collectives_[program][y];
    std::vector<OpId> out;
    if (a.empty() || b.empty()) return out;
    out.resize(a.size() + b.size());
    std::merge(a.begin(), a.end(), b.begin(), b.end(), out.begin());
    for (std::size_t i = 0; i < out.size();) {
      const GroupId group = s_.ops[out[i].value].group;
      std::size_t j = i + 1;
      while (group.valid() && j < out.size() && s_.ops[out[j].value].group == group) ++j;
      std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(i), out.begin() + static_cast<std::ptrdiff_t>(j),
                       [this](OpId l, OpId r) { return comm(l) < comm(r); });
      i = j;
    }
    return out;
  }

  void check_pair(std::size_t x, std::size_t y) {
    std::vector<std::vector<OpId>> sequences(s_.programs.size());
    std::vector<std::uint64_t> hashes(s_.programs.size(), 0);
    std::size_t users = 0;
    for (std::size_t p = 0; p < sequences.size(); ++p) {
      sequences[p] = merged(p, x, y);
      Hash64 hash;
      for (OpId id : sequences[p]) hash.add(comm(id).value);
      hashes[p] = hash.value();
      users += sequences[p].empty() ? 0 : 1;
    }
    if (users < 2) return;
    std::unordered_map<std::uint64_t, std::uint32_t> first;  // (instance of X, instance of Y) -> first rank
    for (std::uint32_t r = 0; r < tables_.program_of_rank.size(); ++r) {
      const ProgramId program = tables_.program_of_rank[r];
      const std::uint64_t in_x = tables_.comms[x]->instance_of[r], in_y = tables_.comms[y]->instance_of[r];
      if (!program.valid() || sequences[program.value].empty() || in_x == CommInstances::kNotMember || in_y == CommInstances::kNotMember)
        continue;
      const std::uint32_t other = first.try_emplace(in_x << 32 | in_y, r).first->second;
      const ProgramId other_program = tables_.program_of_rank[other];
      if (hashes[other_program.value] == hashes[program.value]) continue;
      return report(RankId(other), sequences[other_program.value], RankId(r), sequences[program.value]);
    }
  }

  bool next_differs_in_lane(const std::vector<OpId>& ops, std::size_t at) const {
    for (std::size_t i = at + 1; i < ops.size(); ++i)
      if (comm(ops[i]) != comm(ops[at])) return s_.ops[ops[i].value].lane != s_.ops[ops[at].value].lane;
    return false;
  }

  void report(RankId a, const std::vector<OpId>& ops_a, RankId b, const std::vector<OpId>& ops_b) {
    std::size_t i = 0;
    while (i < ops_a.size() && i < ops_b.size() && comm(ops_a[i]) == comm(ops_b[i])) ++i;
    if (i == ops_a.size() || i == ops_b.size()) return;  // counts differ: check_collectives says so
    const bool lanes_differ = next_differs_in_lane(ops_a, i) || next_differs_in_lane(ops_b, i);
    const Severity severity = transport_ == Transport::Nccl && lanes_differ ? Severity::Error : Severity::Warning;
    const std::string &name_a = s_.communicators[comm(ops_a[i]).value].name, &name_b = s_.communicators[comm(ops_b[i]).value].name;
    findings_.at_op(
        ops_b[i], "COMM-ORDER",
        fmt::format("rank {} uses communicator {} where rank {} uses {} first; both ranks share both", b.value, name_b, a.value, name_a),
        "issue the collectives of communicators that share ranks in one order everywhere", {&ops_a[i], 1}, severity);
  }

  const Schedule& s_;
  const CommTables& tables_;
  const Transport transport_;
  Findings& findings_;
  std::vector<std::vector<std::vector<OpId>>> collectives_;  // [program][comm]
};

}  // namespace

void check_comm_order(const Schedule& s, const CommTables& tables, Transport transport, Findings& findings) {
  OrderChecker(s, tables, transport, findings).check();
}

}  // namespace steptwin
