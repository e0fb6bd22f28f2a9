// COMM-ORDER inside a communicator: the k-th collective of every member is the same one. GUARD: all members guard it or none does.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

DType dtype_of(const OpBody& body) {
  return std::visit(Overloaded{
                        [](const Compute&) { return DType::Bf16; },
                        [](const Copy& op) { return op.from; },
                        [](const HostWait&) { return DType::Bf16; },
                        [](const auto& op) { return op.dtype; },
                    },
                    body);
}

class CollectiveChecker {
 public:
  CollectiveChecker(const Schedule& schedule, const CommTables& tables, std::size_t comm, Findings& findings)
      : s_(schedule), tables_(tables), comm_(comm), findings_(findings), collectives_(schedule.programs.size()) {
    for (std::size_t p = 0; p < collectives_.size(); ++p)
      for (OpId id : tables.ops[p][comm])
        if (is_collective(s_.ops[id.value].body)) collectives_[p].push_back(id);
  }

  void check() {
    if (std::all_of(collectives_.begin(), collectives_.end(), [](const auto& ops) { return ops.empty(); })) return;
    for (std::uint32_t instance : distinct_instances(tables_, comm_)) {
      const auto& members = tables_.comms[comm_]->members[instance];
      std::set<ProgramId> done{program(members.front())};
      for (RankId rank : members)
        if (done.insert(program(rank)).second) compare(members.front(), rank);
      check_roots(members);
    }
  }

 private:
  ProgramId program(RankId rank) const { return tables_.program_of_rank[rank.value]; }
  const std::vector<OpId>& issued(RankId rank) const { return program(rank).valid() ? collectives_[program(rank).value] : nothing_; }
  const std::string& comm_name() const { return s_.communicators[comm_].name; }

  // What two members disagree on; empty = nothing.
  std::string difference(const OpBody& a, const OpBody& b) const {
    if (a.index() != b.index()) return fmt::format("{} against {}", kind_name(b), kind_name(a));
    if (bytes_of(a) != bytes_of(b)) return fmt::format("{} bytes against {}", bytes_of(b).value, bytes_of(a).value);
    if (dtype_of(a) != dtype_of(b)) return fmt::format("{} against {}", name_of(dtype_of(b)), name_of(dtype_of(a)));
    const auto *x = std::get_if<AllReduce>(&a), *y = std::get_if<AllReduce>(&b);
    return x && y && x->reduction != y->reduction ? "sum against max" : "";
  }

  void compare(RankId first, RankId rank) {
    const auto &expected = issued(first), &found = issued(rank);
    const std::size_t common = std::min(expected.size(), found.size());
    for (std::size_t k = 0; k < common; ++k) {
      const Op &op = s_.ops[expected[k].value], &other = s_.ops[found[k].value];
      if (op.guard.valid() != other.guard.valid())
        return findings_.at_op(found[k], "GUARD",
                               fmt::format("collective {} on {} has a guard on rank {} only: when it is false, the others wait", k + 1,
                                           comm_name(), (op.guard.valid() ? first : rank).value),
                               "guard it on all members by the same value, or on none", {&expected[k], 1});
      const std::string what = difference(op.body, other.body);
      if (what.empty()) continue;
      return findings_.at_op(
          found[k], "COMM-ORDER",
          fmt::format("collective {} on {} differs between rank {} and rank {}: {}", k + 1, comm_name(), rank.value, first.value, what),
          "all members issue the same collectives of a communicator in the same order", {&expected[k], 1});
    }
    if (expected.size() == found.size()) return;
    const bool more = found.size() > common;
    findings_.at_op((more ? found : expected)[common], "COMM-ORDER",
                    fmt::format("collective {} on {} is issued by rank {} but not by rank {}", common + 1, comm_name(),
                                (more ? rank : first).value, (more ? first : rank).value),
                    "all members issue the same collectives of a communicator");
  }

  void check_roots(const std::vector<RankId>& members) {
    const auto& expected = issued(members.front());
    const auto size = static_cast<std::uint32_t>(members.size());
    for (std::size_t k = 0; k < expected.size() && !findings_.full(); ++k) {
      const auto* first = std::get_if<Broadcast>(&s_.ops[expected[k].value].body);
      if (!first) continue;
      const std::uint32_t root = first->root.resolve(0, size);
      for (std::uint32_t m = 1; m < size; ++m) {
        const auto& ops = issued(members[m]);
        const auto* other = k < ops.size() ? std::get_if<Broadcast>(&s_.ops[ops[k].value].body) : nullptr;
        if (!other || other->root.resolve(m, size) == root) continue;
        return findings_.at_op(ops[k], "COMM-ORDER",
                               fmt::format("the root of collective {} on {} is member {} for rank {} but member {} for rank {}", k + 1,
                                           comm_name(), other->root.resolve(m, size), members[m].value, root, members.front().value),
                               "name the root by its member number", {&expected[k], 1});
      }
    }
  }

  const Schedule& s_;
  const CommTables& tables_;
  const std::size_t comm_;
  Findings& findings_;
  std::vector<std::vector<OpId>> collectives_;  // [program]
  const std::vector<OpId> nothing_;
};

}  // namespace

void check_collectives(const Schedule& s, const CommTables& tables, Findings& findings) {
  for (std::size_t c = 0; c < tables.comms.size() && !findings.full(); ++c)
    if (tables.comms[c]) CollectiveChecker(s, tables, c, findings).check();
}

}  // namespace steptwin
