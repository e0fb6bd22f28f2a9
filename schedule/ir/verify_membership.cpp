// COMM-MEMBER and SELF: are the ranks of an op members of its communicator, and is the peer or root one?
#include <fmt/format.h>

#include <optional>
#include <set>

#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

std::optional<Peer> peer_of(const OpBody& body) {
  if (const auto* send = std::get_if<Send>(&body)) return send->to;
  if (const auto* recv = std::get_if<Recv>(&body)) return recv->from;
  if (const auto* broadcast = std::get_if<Broadcast>(&body)) return broadcast->root;
  return std::nullopt;
}

// The distinct (member, size) pairs that the ranks of a program have in a communicator.
using Seats = std::set<std::pair<std::uint32_t, std::uint32_t>>;

class MembershipChecker {
 public:
  MembershipChecker(const Schedule& schedule, const CommTables& tables, Findings& findings)
      : s_(schedule), tables_(tables), findings_(findings) {}

  void check(std::size_t p, std::size_t c) {
    const auto& ops = tables_.ops[p][c];
    if (ops.empty()) return;
    const CommInstances& comm = *tables_.comms[c];
    Seats seats;
    for (RankId rank : s_.programs[p].ranks) {
      if (comm.instance_of[rank.value] == CommInstances::kNotMember) {
        return findings_.at_op(ops.front(), "COMM-MEMBER",
                               fmt::format("rank {} is no member of communicator {}", rank.value, s_.communicators[c].name),
                               "check the groups of the communicator, or move the rank to a program of its own");
      }
      seats.emplace(comm.member_of[rank.value], static_cast<std::uint32_t>(comm.members[comm.instance_of[rank.value]].size()));
    }
    std::set<std::pair<std::int32_t, bool>> done;  // each distinct peer once
    for (OpId id : ops) {
      const auto peer = peer_of(s_.ops[id.value].body);
      if (peer && done.emplace(peer->value, peer->relative).second) check_peer(id, *peer, seats);
    }
    check_self(ops, seats);
  }

 private:
  void check_peer(OpId id, Peer peer, const Seats& seats) {
    if (peer.relative) return;
    for (const auto& [member, size] : seats) {
      if (peer.value >= 0 && static_cast<std::uint32_t>(peer.value) < size) continue;
      return findings_.at_op(id, "COMM-MEMBER", fmt::format("member {} does not exist: the communicator has {} members", peer.value, size),
                             fmt::format("members are numbered 0 to {} in rank order; +1 and -1 are the neighbours on the ring", size - 1));
    }
  }

  void check_self(const std::vector<OpId>& ops, const Seats& seats) {
    std::set<std::pair<std::int32_t, bool>> done;
    for (OpId id : ops) {
      const Op& op = s_.ops[id.value];
      if (!is_point_to_point(op.body) || op.group.valid()) continue;
      const Peer peer = *peer_of(op.body);
      if (!done.emplace(peer.value, peer.relative).second) continue;
      for (const auto& [member, size] : seats) {
        if (peer.resolve(member, size) != member) continue;
        findings_.at_op(id, "SELF", fmt::format("member {} exchanges a message with itself outside a group", member),
                        "a send to oneself waits for the receive behind it: put both into one group, or use a copy");
        return;
      }
    }
  }

  const Schedule& s_;
  const CommTables& tables_;
  Findings& findings_;
};

// A shard is the share of a member: the ranks of the program must be members.
void check_shards(const Schedule& s, const CommTables& tables, const Program& program, Findings& findings) {
  std::set<std::uint32_t> done;
  for (std::uint32_t i = 0; i < program.op_count && !findings.full(); ++i) {
    const OpId id(program.first_op.value + i);
    for (const Access& access : s.accesses_of(id)) {
      if (access.part.kind != Part::Kind::Shard || !done.insert(access.part.a).second) continue;
      for (RankId rank : program.ranks) {
        if (tables.comms[access.part.a]->instance_of[rank.value] != CommInstances::kNotMember) continue;
        findings.at_op(
            id, "COMM-MEMBER",
            fmt::format("rank {} has no shard: it is no member of communicator {}", rank.value, s.communicators[access.part.a].name));
        break;
      }
    }
  }
}

}  // namespace

void check_membership(const Schedule& s, const CommTables& tables, Findings& findings) {
  MembershipChecker checker(s, tables, findings);
  for (std::size_t p = 0; p < s.programs.size(); ++p) {
    for (std::size_t c = 0; c < tables.comms.size() && !findings.full(); ++c) checker.check(p, c);
    check_shards(s, tables, s.programs[p], findings);
  }
}

}  // namespace steptwin
