#include "schedule/ir/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "schedule/ir/text.h"
#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

// After one of these the zero-cost run would only repeat the same fault as a hang.
bool explains_hang(const Diagnostic& d) {
  constexpr std::array<std::string_view, 6> kCodes = {"COMM-MEMBER", "SELF", "COMM-ORDER", "MISSING-SEND", "MISSING-RECV", "GROUP-SPLIT"};
  return d.severity == Severity::Error && std::find(kCodes.begin(), kCodes.end(), d.code) != kCodes.end();
}

void mark(const Schedule& schedule, const Access& access, std::vector<bool>& used) {
  if (access.part.kind == Part::Kind::Shard && access.part.a < schedule.communicators.size()) used[access.part.a] = true;
}

}  // namespace

void Findings::add(Diagnostic diagnostic) {
  if (!full()) found_.push_back(std::move(diagnostic));
}

void Findings::error(const char* code, std::string text, std::string help) {
  add({Severity::Error, code, std::move(text), std::move(help), {}, {}});
}

void Findings::at_op(OpId op, const char* code, std::string text, std::string help, std::span<const OpId> related, Severity severity) {
  if (full()) return;
  Diagnostic d{severity, code, fmt::format("{}: {}", op_name(op), text), std::move(help), {}, {}};
  for (OpId other : related) d.details.push_back("   " + line(other));
  d.details.push_back("-> " + line(op));
  add(std::move(d));
}

std::string Findings::op_name(OpId op) const {
  const Program& program = schedule_.program_of(op);
  return fmt::format("op {} of {}", op.value - program.first_op.value, program.name);
}

std::string Findings::line(OpId op) const { return fmt::format("{}: {}", schedule_.program_of(op).name, print_op(schedule_, op)); }

CommTables::CommTables(const Schedule& schedule) : program_of_rank(schedule.program_of_rank()), comms(schedule.communicators.size()) {
  std::vector<bool> used(comms.size(), false);
  ops.resize(schedule.programs.size(), std::vector<std::vector<OpId>>(comms.size()));
  for (std::size_t p = 0; p < schedule.programs.size(); ++p) {
    const Program& program = schedule.programs[p];
    for (std::uint32_t i = 0; i < program.op_count; ++i) {
      const OpId id(program.first_op.value + i);
      for (const Access& access : schedule.accesses_of(id)) mark(schedule, access, used);
      const CommId comm = comm_of(schedule.ops[id.value].body);
      if (!comm.valid()) continue;
      used[comm.value] = true;
      ops[p][comm.value].push_back(id);
    }
  }
  for (std::size_t c = 0; c < comms.size(); ++c)
    if (used[c]) comms[c] = expand(schedule.mesh, schedule.communicators[c]);
}

std::vector<std::uint32_t> distinct_instances(const CommTables& tables, std::size_t comm) {
  std::vector<std::uint32_t> out;
  std::set<std::vector<ProgramId>> seen;
  const auto& members = tables.comms[comm]->members;
  for (std::uint32_t i = 0; i < members.size(); ++i) {
    std::vector<ProgramId> programs;
    programs.reserve(members[i].size());
    for (RankId rank : members[i]) programs.push_back(tables.program_of_rank[rank.value]);
    if (seen.insert(std::move(programs)).second) out.push_back(i);
  }
  return out;
}

bool reads(AccessMode mode) { return mode == AccessMode::Read || mode == AccessMode::Update; }
bool writes(AccessMode mode) { return mode == AccessMode::Write || mode == AccessMode::Update; }

ByteRange touched_bytes(const Schedule& schedule, const CommTables& tables, const Program& program, const Access& access, RankId rank) {
  Buffer buffer = program.buffers[access.buffer.value];
  if (buffer.bytes.value == 0 && !buffer.layout.valid()) buffer.bytes = Bytes(kUnsizedBytes);
  if (access.part.kind != Part::Kind::Shard) return byte_range(buffer, schedule, access.part, 0, 1);
  const CommInstances& comm = *tables.comms[access.part.a];
  const auto members = static_cast<std::uint32_t>(comm.members[comm.instance_of[rank.value]].size());
  return byte_range(buffer, schedule, access.part, comm.member_of[rank.value], members);
}

std::vector<RankId> sample_ranks(const Schedule& schedule, const Program& program) {
  if (program.ranks.empty()) return {};
  const std::size_t first = schedule.access_offsets[program.first_op.value];
  const std::size_t last = schedule.access_offsets[program.first_op.value + program.op_count];
  const bool shards = std::any_of(schedule.accesses.begin() + static_cast<std::ptrdiff_t>(first),
                                  schedule.accesses.begin() + static_cast<std::ptrdiff_t>(last),
                                  [](const Access& a) { return a.part.kind == Part::Kind::Shard; });
  if (shards && program.ranks.size() > 1) return {program.ranks.front(), program.ranks.back()};
  return {program.ranks.front()};
}

std::vector<Diagnostic> verify(const Schedule& schedule, const VerifyOptions& options) {
  Findings findings(schedule, std::max<std::size_t>(options.limit, 1));
  if (!check_tables(schedule, findings)) return findings.take();
  check_declarations(schedule, findings);
  if (findings.any_error()) return findings.take();
  check_ops(schedule, findings);
  if (findings.any_error()) return findings.take();
  const CommTables tables(schedule);
  check_membership(schedule, tables, findings);
  check_accesses(schedule, tables, findings);
  if (findings.any_error()) return findings.take();
  check_collectives(schedule, tables, findings);
  check_messages(schedule, tables, findings);
  check_comm_order(schedule, tables, options.transport, findings);
  check_writes(schedule, tables, findings);
  check_races(schedule, tables, findings);
  check_guards(schedule, tables, findings);
  const auto& found = findings.all();
  if (!findings.full() && std::none_of(found.begin(), found.end(), explains_hang))
    for (Diagnostic& d : find_deadlock(schedule)) findings.add(std::move(d));
  return findings.take();
}

}  // namespace steptwin
