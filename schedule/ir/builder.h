// Builds a Schedule op by op. Programs are built one after the other: begin_program(), lanes and buffers at any time,
// ops in issue order. finish() hands the value over; verify() judges it (the builder checks only what it needs to index).
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "schedule/ir/schedule.h"

namespace steptwin {

class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(Mesh mesh);

  CommId communicator(std::string name, const std::vector<std::string>& axes, std::vector<std::vector<std::uint32_t>> groups = {});
  void constant(std::string name, double value);  // once a name
  NameId name(std::string_view text);  // interned; the empty text is none
  LayoutId layout(Layout layout);      // interned by equality
  WorkId work(Work work);              // interned by equality

  void begin_program(std::string name, std::vector<RankId> ranks, std::vector<std::int32_t> stages = {});
  LaneId lane(std::string name, Engine engine, Priority priority = Priority::Normal);
  BufferId buffer(std::string_view name, Space space, Category category, Bytes bytes, LayoutId layout = {}, bool resident = false);
  void shard_buffer(BufferId buffer, CommId comm);  // declares it one shard of its layout (Buffer::shard)
  void make_lazy(BufferId buffer);                  // of a resident one (Buffer::lazy)
  void grow_buffer(BufferId buffer, Bytes bytes);  // sets a new size (flat buckets whose size is known late)
  GroupId new_group();

  // Appends an op to the current program and returns its id. Dependencies that repeat are kept once.
  OpId op(Op op, const std::vector<Access>& accesses, std::vector<OpId> deps);
  // A compute op with one part whose phase, segment, layer and micro-batch are the label's.
  OpId compute(LaneId lane, Label label, WorkId work, const std::vector<Access>& accesses, std::vector<OpId> deps);
  // A compute op of several parts.
  OpId compute_parts(LaneId lane, Label label, const std::vector<ComputePart>& parts, const std::vector<Access>& accesses, std::vector<OpId> deps);
  Op& at(OpId op) { return schedule_.ops[op.value]; }
  const Schedule& so_far() const { return schedule_; }
  std::uint32_t next_op() const { return static_cast<std::uint32_t>(schedule_.ops.size()); }

  Schedule finish();

 private:
  Schedule schedule_;
  std::unordered_map<std::string, std::uint32_t> names_, layouts_, works_;
  std::uint32_t groups_ = 0;
};

inline Access read(BufferId b, Part p = {}) { return {b, AccessMode::Read, p}; }
inline Access write(BufferId b, Part p = {}) { return {b, AccessMode::Write, p}; }
inline Access update(BufferId b, Part p = {}) { return {b, AccessMode::Update, p}; }
inline Access hold(BufferId b, Part p = {}) { return {b, AccessMode::Hold, p}; }

}  // namespace steptwin
