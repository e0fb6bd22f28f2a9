// MISSING-SEND, MISSING-RECV and SIZE: the k-th send from a to b meets the k-th receive of b from a, with equal bytes and dtype.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

struct Message {
  std::uint32_t from = 0, to = 0;  // members
  OpId op;
  bool same_pair(const Message& other) const { return from == other.from && to == other.to; }
};
bool before(const Message& a, const Message& b) { return a.from != b.from ? a.from < b.from : a.to < b.to; }

class MessageChecker {
 public:
  MessageChecker(const Schedule& schedule, const CommTables& tables, std::size_t comm, Findings& findings,
                 std::vector<GroupedMessage>& grouped)
      : s_(schedule), tables_(tables), comm_(comm), findings_(findings), grouped_(grouped) {}

  void check() {
    for (std::uint32_t instance : distinct_instances(tables_, comm_)) {
      members_ = &tables_.comms[comm_]->members[instance];
      collect();
      std::size_t s = 0, r = 0;
      while ((s < sends_.size() || r < recvs_.size()) && !findings_.full()) {
        const bool sender = r == recvs_.size() || (s < sends_.size() && !before(recvs_[r], sends_[s]));
        const Message pair = sender ? sends_[s] : recvs_[r];
        check_pair(take(sends_, s, pair), take(recvs_, r, pair));
      }
    }
  }

 private:
  void collect() {
    sends_.clear(), recvs_.clear();
    const auto size = static_cast<std::uint32_t>(members_->size());
    for (std::uint32_t m = 0; m < size; ++m) {
      const ProgramId program = tables_.program_of_rank[(*members_)[m].value];
      if (!program.valid()) continue;
      for (OpId id : tables_.ops[program.value][comm_]) {
        if (const auto* send = std::get_if<Send>(&s_.ops[id.value].body)) sends_.push_back({m, send->to.resolve(m, size), id});
        if (const auto* recv = std::get_if<Recv>(&s_.ops[id.value].body)) recvs_.push_back({recv->from.resolve(m, size), m, id});
      }
    }
    std::stable_sort(sends_.begin(), sends_.end(), before);
    std::stable_sort(recvs_.begin(), recvs_.end(), before);
  }

  static std::span<const Message> take(const std::vector<Message>& all, std::size_t& at, const Message& pair) {
    const std::size_t first = at;
    while (at < all.size() && all[at].same_pair(pair)) ++at;
    return {all.data() + first, at - first};
  }

  std::uint32_t rank(std::uint32_t member) const { return (*members_)[member].value; }
  const std::string& comm_name() const { return s_.communicators[comm_].name; }
  // The same op fails alike on every rank of its program: say it once.
  bool first_report(OpId op) { return reported_.insert(op.value).second; }

  void check_pair(std::span<const Message> sends, std::span<const Message> recvs) {
    const std::size_t matched = std::min(sends.size(), recvs.size());
    for (std::size_t k = 0; k < matched; ++k) check_match(sends[k], recvs[k], k);
    if (sends.size() > matched && first_report(sends[matched].op)) {
      const Message& m = sends[matched];
      findings_.at_op(m.op, "MISSING-RECV",
                      fmt::format("message {} on {} from rank {} to rank {} is never received: rank {} posts {} receives for {} sends",
                                  matched + 1, comm_name(), rank(m.from), rank(m.to), rank(m.to), recvs.size(), sends.size()),
                      fmt::format("add a recv on {} from member {} to the program of rank {}", comm_name(), m.from, rank(m.to)));
    }
    if (recvs.size() > matched && first_report(recvs[matched].op)) {
      const Message& m = recvs[matched];
      findings_.at_op(m.op, "MISSING-SEND",
                      fmt::format("message {} on {} from rank {} to rank {} is never sent: rank {} sends {} for {} receives", matched + 1,
                                  comm_name(), rank(m.from), rank(m.to), rank(m.from), sends.size(), recvs.size()),
                      fmt::format("add a send on {} to member {} to the program of rank {}", comm_name(), m.to, rank(m.from)));
    }
  }

  void check_match(const Message& sent, const Message& received, std::size_t k) {
    const Op &from = s_.ops[sent.op.value], &to = s_.ops[received.op.value];
    const Send& send = std::get<Send>(from.body);
    const Recv& recv = std::get<Recv>(to.body);
    if (from.group.valid() || to.group.valid())
      grouped_.push_back({{(*members_)[sent.from], (*members_)[sent.to]}, {sent.op, received.op}});
    if ((send.bytes == recv.bytes && send.dtype == recv.dtype) || !first_report(received.op)) return;
    const OpId related[] = {sent.op};
    findings_.at_op(
        received.op, "SIZE",
        fmt::format("message {} on {} from rank {} to rank {}: {} bytes of {} are sent, {} bytes of {} are expected", k + 1, comm_name(),
                    rank(sent.from), rank(sent.to), send.bytes.value, name_of(send.dtype), recv.bytes.value, name_of(recv.dtype)),
        "messages meet in the order they are issued: check sizes, dtypes and the order of the sends", related);
  }

  const Schedule& s_;
  const CommTables& tables_;
  const std::size_t comm_;
  Findings& findings_;
  std::vector<GroupedMessage>& grouped_;
  const std::vector<RankId>* members_ = nullptr;
  std::vector<Message> sends_, recvs_;
  std::unordered_set<std::uint32_t> reported_;
};

}  // namespace

void check_messages(const Schedule& s, const CommTables& tables, Findings& findings) {
  std::vector<GroupedMessage> grouped;
  for (std::size_t c = 0; c < tables.comms.size() && !findings.full(); ++c)
    if (tables.comms[c]) MessageChecker(s, tables, c, findings, grouped).check();
  check_group_split(s, grouped, findings);
}

}  // namespace steptwin
