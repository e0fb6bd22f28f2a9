// ACCESS: parts lie inside their buffers, and the payload of an op is what its accesses add up to.
#include <fmt/format.h>

#include <algorithm>

#include "schedule/ir/liveness.h"
#include "schedule/ir/part_size.h"
#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

struct Sums {
  std::int64_t read = 0, write = 0, update = 0;
  bool inputs = false, outputs = false;  // is there any read or update, write or update?

  bool fits_inputs(std::int64_t bytes) const { return bytes == read || bytes == update || bytes == read + update; }
  bool fits_outputs(std::int64_t bytes) const { return bytes == write || bytes == update || bytes == write + update; }
};

class AccessChecker {
 public:
  AccessChecker(const Schedule& schedule, const CommTables& tables, const Program& program, Findings& findings)
      : s_(schedule), tables_(tables), program_(program), findings_(findings), ranks_(sample_ranks(schedule, program)) {}

  void check(OpId id) {
    for (const Access& access : s_.accesses_of(id))
      if (!check_part(id, access)) return;
    const bool fits = ranks_.empty() || std::any_of(ranks_.begin(), ranks_.end(),
                                                    [&](RankId rank) { return payload_fits(s_.ops[id.value].body, sums(id, rank)); });
    if (!fits) report_payload(id);
  }

 private:
  bool fail(OpId id, const Access& access, std::string why) {
    findings_.at_op(id, "ACCESS", fmt::format("{}: {}", s_.buffer_name(program_, access.buffer), why),
                    "check the part against the size and layout of the buffer");
    return false;
  }

  bool check_part(OpId id, const Access& access) {
    const Buffer& buffer = program_.buffers[access.buffer.value];
    const Part& part = access.part;
    if (part.kind == Part::Kind::Piece && part.a >= part.b)
      return fail(id, access, fmt::format("piece {} of {} does not exist", part.a, part.b));
    if (part.kind != Part::Kind::Tensor) return true;
    if (!buffer.layout.valid()) return fail(id, access, "a buffer without layout has no tensors");
    if (buffer.shard.valid()) return fail(id, access, "it is a shard, which holds no whole tensors");
    const auto& tensors = s_.layouts[buffer.layout.value].tensors;
    if (part.a < tensors.size()) return true;  // and inside the buffer: verify_structure
    return fail(id, access, fmt::format("its layout has {} tensors, so none with index {}", tensors.size(), part.a));
  }

  std::int64_t size_for(const Access& access, RankId rank) const {
    const Buffer& buffer = program_.buffers[access.buffer.value];
    return buffer.bytes.value == 0 ? 0 : touched_bytes(s_, tables_, program_, access, rank).size;
  }

  Sums sums(OpId id, RankId rank) const {
    Sums sums;
    for (const Access& access : s_.accesses_of(id)) {
      if (access.mode == AccessMode::Hold) continue;
      std::int64_t& sum = access.mode == AccessMode::Read ? sums.read : access.mode == AccessMode::Write ? sums.write : sums.update;
      sum = std::min(sum + size_for(access, rank), std::int64_t{1} << 60);
      sums.inputs = sums.inputs || reads(access.mode);
      sums.outputs = sums.outputs || writes(access.mode);
    }
    return sums;
  }

  static bool input_fits(const Sums& s, Bytes bytes) { return !s.inputs || s.fits_inputs(bytes.value); }
  static bool output_fits(const Sums& s, Bytes bytes) { return !s.outputs || s.fits_outputs(bytes.value); }
  static bool either_fits(const Sums& s, Bytes bytes) {
    return (!s.inputs && !s.outputs) || (s.inputs && s.fits_inputs(bytes.value)) || (s.outputs && s.fits_outputs(bytes.value));
  }

  // A copy writes as many elements as it reads.
  static bool copy_fits(const Copy& copy, const Sums& s) {
    const std::int64_t to = copy.from == copy.to ? copy.bytes.value : copy.bytes.value / size_of(copy.from) * size_of(copy.to);
    return input_fits(s, copy.bytes) && output_fits(s, Bytes(to));
  }

  static bool payload_fits(const OpBody& body, const Sums& s) {
    return std::visit(Overloaded{
                          [](const Compute&) { return true; },
                          [](const HostWait&) { return true; },
                          [&](const AllGather& op) { return output_fits(s, op.bytes); },
                          [&](const ReduceScatter& op) { return input_fits(s, op.bytes); },
                          [&](const AllReduce& op) { return either_fits(s, op.bytes); },
                          [&](const Broadcast& op) { return either_fits(s, op.bytes); },
                          [&](const AllToAll& op) { return input_fits(s, op.bytes); },
                          [&](const Send& op) { return input_fits(s, op.bytes); },
                          [&](const Recv& op) { return output_fits(s, op.bytes); },
                          [&](const Copy& op) { return copy_fits(op, s); },
                      },
                      body);
  }

  void report_payload(OpId id) {
    const OpBody& body = s_.ops[id.value].body;
    const Sums found = sums(id, ranks_.front());
    std::string text = fmt::format("its {} bytes do not fit its accesses: {} bytes read, {} written, {} updated", bytes_of(body).value,
                                   found.read, found.write, found.update);
    const auto* copy = std::get_if<Copy>(&body);
    if (copy && copy->from != copy->to) text += fmt::format(", cast from {} to {}", name_of(copy->from), name_of(copy->to));
    findings_.at_op(id, "ACCESS", std::move(text),
                    "gather and recv count what they write, all_reduce and broadcast the buffer, others what they read");
  }

  const Schedule& s_;
  const CommTables& tables_;
  const Program& program_;
  Findings& findings_;
  const std::vector<RankId> ranks_;
};

void check_lazy(const Schedule& s, const Program& program, Findings& findings) {
  const std::vector<Lifetime> lives = lifetimes(s, program, Repetition::First);
  for (std::uint32_t b = 0; b < lives.size() && !findings.full(); ++b)
    if (program.buffers[b].lazy && !lives[b].home.valid())
      findings.error("ACCESS",
                     fmt::format("no op with a lane uses the lazy buffer {} of {}: it would never be allocated", s.buffer_name(program, BufferId(b)),
                                 program.name),
                     "let an op use it, or declare it resident");
}

}  // namespace

void check_accesses(const Schedule& s, const CommTables& tables, Findings& findings) {
  for (const Program& program : s.programs) {
    AccessChecker checker(s, tables, program, findings);
    for (std::uint32_t i = 0; i < program.op_count && !findings.full(); ++i) checker.check(OpId(program.first_op.value + i));
    if (has_lazy_buffers(program)) check_lazy(s, program, findings);
  }
}

}  // namespace steptwin
