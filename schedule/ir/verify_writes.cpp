// USE-BEFORE-WRITE: every byte read was written by an earlier op (resident buffers count as written).
// DUP-SEND: no receive overwrites received bytes that nothing has used: the message before it would be lost.
// Issue order decides here; whether the reader also waits for the writer is RACE's question.
#include <fmt/format.h>

#include "schedule/ir/byte_map.h"
#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

struct Content {
  bool written = false;
  OpId unused_recv;  // the receive whose bytes nothing has read yet
};

class WriteChecker {
 public:
  WriteChecker(const Schedule& schedule, const CommTables& tables, const Program& program, RankId rank, Findings& findings)
      : s_(schedule), tables_(tables), program_(program), rank_(rank), findings_(findings) {
    maps_.reserve(program.buffers.size());
    for (const Buffer& buffer : program.buffers) maps_.emplace_back(Content{buffer.resident, {}});
  }

  void check(OpId id) {
    const Op& op = s_.ops[id.value];
    if (op.guard.valid()) check_read(id, {op.guard, AccessMode::Read, {}});
    for (const Access& access : s_.accesses_of(id))
      if (reads(access.mode)) check_read(id, access);
    for (const Access& access : s_.accesses_of(id))
      if (writes(access.mode)) write(id, access, std::holds_alternative<Recv>(op.body) ? id : OpId());
  }

 private:
  ByteRange range(const Access& access) const { return touched_bytes(s_, tables_, program_, access, rank_); }

  void check_read(OpId id, const Access& access) {
    bool written = true;
    maps_[access.buffer.value].each(range(access), [&](Content& content) {
      written = written && content.written;
      content.unused_recv = OpId();
      content.written = true;  // say it once
    });
    if (written) return;
    findings_.at_op(id, "USE-BEFORE-WRITE",
                    fmt::format("it reads {}, which no earlier op has written in full", s_.buffer_name(program_, access.buffer)),
                    "let an earlier op write it, or declare the buffer resident");
  }

  void write(OpId id, const Access& access, OpId recv) {
    OpId lost;
    const ByteRange bytes = range(access);
    maps_[access.buffer.value].each(
        bytes, [&](const Content& content) { lost = recv.valid() && content.unused_recv.valid() ? content.unused_recv : lost; });
    maps_[access.buffer.value].assign(bytes, {true, recv});
    if (!lost.valid() || lost == id) return;
    const OpId related[] = {lost};
    findings_.at_op(id, "DUP-SEND",
                    fmt::format("two messages fill the same part of {}: this one overwrites what op {} received and nothing has used",
                                s_.buffer_name(program_, access.buffer), lost.value - program_.first_op.value),
                    "receive into another buffer or part, or remove the second send", related);
  }

  const Schedule& s_;
  const CommTables& tables_;
  const Program& program_;
  const RankId rank_;
  Findings& findings_;
  std::vector<ByteMap<Content>> maps_;
};

}  // namespace

void check_writes(const Schedule& s, const CommTables& tables, Findings& findings) {
  for (const Program& program : s.programs) {
    for (RankId rank : sample_ranks(s, program)) {
      const std::size_t before = findings.all().size();
      WriteChecker checker(s, tables, program, rank, findings);
      for (std::uint32_t i = 0; i < program.op_count && !findings.full(); ++i) checker.check(OpId(program.first_op.value + i));
      if (findings.all().size() > before) break;  // the next sample would repeat it
    }
  }
}

}  // namespace steptwin
