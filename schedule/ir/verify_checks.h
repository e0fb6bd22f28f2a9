// The checks behind verify(), one concept per file. Private to verify*.cpp.
// Order matters: check_tables before anything prints an op; structure before everything that follows ids.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "schedule/base/diagnostic.h"
#include "schedule/ir/schedule.h"
#include "schedule/ir/verify.h"

namespace steptwin {

// Collects diagnostics up to a limit; checks stop early once it is full.
class Findings {
 public:
  Findings(const Schedule& schedule, std::size_t limit) : schedule_(schedule), limit_(limit) {}

  void add(Diagnostic diagnostic);
  void error(const char* code, std::string text, std::string help = {});
  // A problem at an op: the details show the related ops and, with an arrow, the op itself.
  void at_op(OpId op, const char* code, std::string text, std::string help = {}, std::span<const OpId> related = {},
             Severity severity = Severity::Error);
  bool full() const { return found_.size() >= limit_; }
  bool any_error() const { return has_errors(found_); }
  const std::vector<Diagnostic>& all() const { return found_; }
  std::vector<Diagnostic> take() { return std::move(found_); }
  std::string op_name(OpId op) const;  // "op 12 of pp1"

 private:
  std::string line(OpId op) const;
  const Schedule& schedule_;
  std::size_t limit_;
  std::vector<Diagnostic> found_;
};

// The instances of the communicators that ops or shard parts use, and per program the ops on each of them.
struct CommTables {
  explicit CommTables(const Schedule& schedule);
  std::vector<ProgramId> program_of_rank;
  std::vector<std::optional<CommInstances>> comms;  // [comm]; none = not used
  std::vector<std::vector<std::vector<OpId>>> ops;  // [program][comm] -> communication ops in issue order
};

// Bytes an access of `rank` touches, for overlap questions. A buffer without size and layout counts as kUnsizedBytes, so that
// hand-written schedules without sizes are checked too.
inline constexpr std::int64_t kUnsizedBytes = std::int64_t{1} << 30;
ByteRange touched_bytes(const Schedule& schedule, const CommTables& tables, const Program& program, const Access& access, RankId rank);
// The instances of one communicator that differ in the programs of their members: the first of each kind. Checks that depend
// on programs only need no others.
std::vector<std::uint32_t> distinct_instances(const CommTables& tables, std::size_t comm);

// A message whose send or receive is in a group, between two ranks.
struct GroupedMessage {
  RankId ranks[2];
  OpId ops[2];
};
void check_group_split(const Schedule& schedule, const std::vector<GroupedMessage>& messages, Findings& findings);  // GROUP-SPLIT

// Ranks whose byte ranges stand for all ranks of the program: the first, and the last when it has shard parts.
std::vector<RankId> sample_ranks(const Schedule& schedule, const Program& program);
bool reads(AccessMode mode);   // read, update
bool writes(AccessMode mode);  // write, update

bool check_tables(const Schedule& schedule, Findings& findings);  // RANGE: the vectors fit together; false = nothing else can be checked
void check_declarations(const Schedule& schedule, Findings& findings);  // RANGE: mesh, names, communicators, layouts, works, programs
void check_ops(const Schedule& schedule, Findings& findings);           // RANGE, LABEL: ids of ops, groups, guards, dependencies
void check_membership(const Schedule& schedule, const CommTables& tables, Findings& findings);   // COMM-MEMBER, SELF
void check_collectives(const Schedule& schedule, const CommTables& tables, Findings& findings);  // COMM-ORDER inside a communicator, GUARD
void check_messages(const Schedule& schedule, const CommTables& tables, Findings& findings);     // MISSING-*, SIZE, MESSAGE-ORDER, GUARD; calls check_group_split
void check_comm_order(const Schedule& schedule, const CommTables& tables, Transport transport,
                      Findings& findings);                                                    // COMM-ORDER across communicators
void check_accesses(const Schedule& schedule, const CommTables& tables, Findings& findings);  // ACCESS
void check_writes(const Schedule& schedule, const CommTables& tables, Findings& findings);    // USE-BEFORE-WRITE, DUP-SEND
void check_races(const Schedule& schedule, const CommTables& tables, Findings& findings);     // RACE
void check_guards(const Schedule& schedule, const CommTables& tables, Findings& findings);    // GUARD

}  // namespace steptwin
