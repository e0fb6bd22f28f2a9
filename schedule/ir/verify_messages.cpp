// MISSING-SEND, MISSING-RECV and SIZE: the k-th send from a to b meets the k-th receive of b from a, with equal bytes and dtype.
// MESSAGE-ORDER: what meets is the same message by its labels, where both ends have them: direction (F or R; B, I or W), micro-batch
// and slice. With stages: a forward message goes to the next stage, a backward one to the stage before (a warning: a stage may send
// elsewhere by intent). GUARD: both ends have a guard or none has.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

// Which way a labelled message goes; 0 = the label does not say.
int direction_of(Phase phase) {
  switch (phase) {
    case Phase::Forward:
    case Phase::Recompute:
      return 1;
    case Phase::Backward:
    case Phase::InputGrad:
    case Phase::WeightGrad:
      return -1;
    case Phase::None:
    case Phase::Update:
      return 0;
  }
  return 0;
}

bool tags_differ(std::int32_t a, std::int32_t b) { return a >= 0 && b >= 0 && a != b; }

// "F mb3", "B c1 mb0", "no label".
std::string label_text(const Label& label) {
  const int direction = direction_of(label.phase);
  std::string text = direction > 0 ? "F" : direction < 0 ? "B" : "";
  const auto add = [&text](const char* tag, std::int32_t value) {
    if (value >= 0) text += fmt::format("{}{}{}", text.empty() ? "" : " ", tag, value);
  };
  add("c", label.chunk);
  add("mb", label.micro_batch);
  add("s", label.slice);
  return text.empty() ? "no label" : text;
}

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
    check_order(sends.first(matched), recvs.first(matched));
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
    const OpId related[] = {sent.op};
    if (from.guard.valid() != to.guard.valid() && first_report(received.op))
      return findings_.at_op(received.op, "GUARD",
                             fmt::format("message {} on {} from rank {} to rank {} has a guard at one end only: when it is false, the other waits",
                                         k + 1, comm_name(), rank(sent.from), rank(sent.to)),
                             "guard both ends by the same value, or none", related);
    if ((send.bytes == recv.bytes && send.dtype == recv.dtype) || !first_report(received.op)) return;
    findings_.at_op(
        received.op, "SIZE",
        fmt::format("message {} on {} from rank {} to rank {}: {} bytes of {} are sent, {} bytes of {} are expected", k + 1, comm_name(),
                    rank(sent.from), rank(sent.to), send.bytes.value, name_of(send.dtype), recv.bytes.value, name_of(recv.dtype)),
        "messages meet in the order they are issued: check sizes, dtypes and the order of the sends", related);
  }

  const Label& label(const Message& m) const { return s_.ops[m.op.value].label; }
  std::int32_t stage(const Message& m) const { return s_.stage_of(s_.program_of(m.op), s_.ops[m.op.value]); }

  bool same_message(const Message& sent, const Message& received) const {
    const Label &a = label(sent), &b = label(received);
    const int from = direction_of(a.phase), to = direction_of(b.phase);
    return (from == 0 || to == 0 || from == to) && !tags_differ(a.micro_batch, b.micro_batch) && !tags_differ(a.slice, b.slice);
  }

  bool between_neighbours(const Message& sent, const Message& received) const {
    const int from = direction_of(label(sent).phase), to = direction_of(label(received).phase);
    if (from == 0 || from != to) return true;
    const std::int32_t sender = stage(sent), receiver = stage(received);
    return sender < 0 || receiver < 0 || receiver == sender + from;
  }

  // The first message of the pair whose ends differ; what follows is usually shifted by it.
  void check_order(std::span<const Message> sends, std::span<const Message> recvs) {
    for (const bool by_label : {true, false}) {
      for (std::size_t k = 0; k < sends.size(); ++k) {
        if (by_label ? same_message(sends[k], recvs[k]) : between_neighbours(sends[k], recvs[k])) continue;
        if (first_report(recvs[k].op)) report_order(sends, recvs, k, by_label ? Severity::Error : Severity::Warning);
        return;
      }
    }
  }

  // The labels of three messages either side, this one in brackets.
  std::string around(std::span<const Message> messages, std::size_t k) const {
    std::string text;
    for (std::size_t i = k > 3 ? k - 3 : 0; i < std::min(messages.size(), k + 4); ++i)
      text += (text.empty() ? "" : ", ") + (i == k ? "[" + label_text(label(messages[i])) + "]" : label_text(label(messages[i])));
    return text;
  }

  void report_order(std::span<const Message> sends, std::span<const Message> recvs, std::size_t k, Severity severity) {
    const OpId related[] = {sends[k].op};
    const Message& m = sends[k];
    findings_.at_op(recvs[k].op, "MESSAGE-ORDER",
                    fmt::format("message {} on {} from rank {} to rank {} is {}, but {} is expected; sent: {}; expected: {}", k + 1, comm_name(),
                                rank(m.from), rank(m.to), label_text(label(m)), label_text(label(recvs[k])), around(sends, k), around(recvs, k)),
                    "messages meet in the order they are issued, whatever their labels: receive them in the order of the sends", related,
                    severity);
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
