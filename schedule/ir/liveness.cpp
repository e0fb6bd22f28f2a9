#include "schedule/ir/liveness.h"

#include <algorithm>

namespace steptwin {
namespace {

void touch(const Program& program, BufferId buffer, std::uint32_t local, LaneId lane, std::vector<Lifetime>& out) {
  if (program.buffers[buffer.value].resident) return;
  Lifetime& life = out[buffer.value];
  const bool begun = life.home.valid();
  if (!begun && !lane.valid()) return;
  if (!begun) life.first = local, life.home = lane;
  life.last = local;
}

}  // namespace

std::vector<Lifetime> lifetimes(const Schedule& schedule, const Program& program) {
  std::vector<Lifetime> out(program.buffers.size());
  for (std::uint32_t local = 0; local < program.op_count; ++local) {
    const OpId id(program.first_op.value + local);
    const Op& op = schedule.ops[id.value];
    for (const Access& access : schedule.accesses_of(id)) touch(program, access.buffer, local, op.lane, out);
    if (op.guard.valid()) touch(program, op.guard, local, op.lane, out);
  }
  return out;
}

std::vector<Bytes> allocated_curve(const Schedule& schedule, const Program& program, Space space) {
  // changes[k]: what is allocated before op k, minus what was dropped after op k - 1
  std::vector<Bytes> curve(program.op_count);
  std::vector<Bytes> changes(program.op_count + std::size_t{1});
  const std::vector<Lifetime> lives = lifetimes(schedule, program);
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.space != space || !lives[b].home.valid()) continue;
    changes[lives[b].first] += buffer.bytes;
    changes[lives[b].last + std::size_t{1}] -= buffer.bytes;
  }
  Bytes now = resident_bytes(program, space);
  for (std::size_t k = 0; k < curve.size(); ++k) curve[k] = now += changes[k];
  return curve;
}

Bytes resident_bytes(const Program& program, Space space) {
  Bytes sum;
  for (const Buffer& buffer : program.buffers)
    if (buffer.resident && buffer.space == space) sum += buffer.bytes;
  return sum;
}

}  // namespace steptwin
