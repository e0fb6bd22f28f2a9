#include "schedule/ir/liveness.h"

#include <algorithm>

namespace steptwin {
namespace {

// Where an op's accesses happen: local op, the last op that is issued with it, lane.
struct Issue {
  std::uint32_t local = 0, last = 0;
  LaneId lane;
};

std::uint32_t last_of_group(const Schedule& schedule, const Program& program, std::uint32_t local) {
  const GroupId group = schedule.ops[program.first_op.value + local].group;
  while (group.valid() && local + 1 < program.op_count && schedule.ops[program.first_op.value + local + 1].group == group) ++local;
  return local;
}

struct Walk {
  const Program& program;
  Repetition repetition;
  std::vector<Lifetime>& out;
};

void touch(const Walk& walk, BufferId id, const Issue& at) {
  const Buffer& buffer = walk.program.buffers[id.value];
  if (held_before(buffer, walk.repetition)) return;
  Lifetime& life = walk.out[id.value];
  const bool begun = life.home.valid();
  if (!begun && !at.lane.valid()) return;
  if (!begun) life.first = at.local, life.home = at.lane;
  life.last = buffer.resident ? Lifetime::kStays : at.last;
}

}  // namespace

std::vector<Lifetime> lifetimes(const Schedule& schedule, const Program& program, Repetition repetition) {
  std::vector<Lifetime> out(program.buffers.size());
  const Walk walk{program, repetition, out};
  std::uint32_t last = 0;
  for (std::uint32_t local = 0; local < program.op_count; ++local) {
    const OpId id(program.first_op.value + local);
    const Op& op = schedule.ops[id.value];
    if (local == 0 || local > last) last = last_of_group(schedule, program, local);
    const Issue at{local, last, op.lane};
    for (const Access& access : schedule.accesses_of(id)) touch(walk, access.buffer, at);
    if (op.guard.valid()) touch(walk, op.guard, at);
  }
  return out;
}

std::vector<Bytes> allocated_curve(const Schedule& schedule, const Program& program, Space space, Repetition repetition) {
  // changes[k]: what is allocated before op k, minus what was dropped after op k - 1
  std::vector<Bytes> curve(program.op_count);
  std::vector<Bytes> changes(program.op_count + std::size_t{1});
  const std::vector<Lifetime> lives = lifetimes(schedule, program, repetition);
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.space != space || !lives[b].home.valid()) continue;
    changes[lives[b].first] += buffer.bytes;
    if (lives[b].last != Lifetime::kStays) changes[lives[b].last + std::size_t{1}] -= buffer.bytes;
  }
  Bytes now = resident_bytes(program, space, repetition);
  for (std::size_t k = 0; k < curve.size(); ++k) curve[k] = now += changes[k];
  return curve;
}

Bytes resident_bytes(const Program& program, Space space, Repetition repetition) {
  Bytes sum;
  for (const Buffer& buffer : program.buffers)
    if (held_before(buffer, repetition) && buffer.space == space) sum += buffer.bytes;
  return sum;
}

bool has_lazy_buffers(const Program& program) {
  return std::any_of(program.buffers.begin(), program.buffers.end(), [](const Buffer& buffer) { return buffer.lazy; });
}

}  // namespace steptwin
