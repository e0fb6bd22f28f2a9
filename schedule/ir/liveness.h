// Derived lifetimes: a buffer is allocated just before the host issues the first op that accesses it, from the pool of that
// op's lane (its home lane; an op without a lane does not count), and dropped just after the host has issued the last access.
// A group is issued as one: what its members access last is dropped behind its last op, or a later member would write into memory that an
// earlier one still reads.
// Resident buffers live for the whole run and have no first or last op. Buffers that no op accesses are never allocated.
// Lazy ones begin as others do in a run's first repetition, and stay: they have no last op. In later repetitions they are resident.
// A guard is an access of its buffer. An op without a lane (HostWait) never begins a lifetime, but its access extends one:
// the buffer stays until the host has waited.
// One pass over a program, linear in accesses.
#pragma once

#include <vector>

#include "schedule/ir/schedule.h"

namespace steptwin {

enum class Repetition : std::uint8_t { First, Later };
// Whether a buffer is there before the repetition's first op.
inline bool held_before(const Buffer& buffer, Repetition repetition) {
  return buffer.resident && !(buffer.lazy && repetition == Repetition::First);
}

struct Lifetime {
  static constexpr std::uint32_t kStays = 0xfffffffeu;  // as `last`: it is not dropped
  std::uint32_t first = 0xffffffffu;  // local op number (from Program::first_op) of the first access by an op with a lane; none = never
  std::uint32_t last = 0xffffffffu;   // of the last access by any op; in a group: the group's last op
  LaneId home;                        // lane of the first access
  bool operator==(const Lifetime&) const = default;
};

std::vector<Lifetime> lifetimes(const Schedule& schedule, const Program& program, Repetition repetition = Repetition::Later);  // one per buffer
bool has_lazy_buffers(const Program& program);

// The `allocated` curve of one space: sample k lies between the allocations and the drops of local op k. Includes resident bytes.
std::vector<Bytes> allocated_curve(const Schedule& schedule, const Program& program, Space space, Repetition repetition = Repetition::Later);
// Held before the repetition's first op.
Bytes resident_bytes(const Program& program, Space space, Repetition repetition = Repetition::Later);

}  // namespace steptwin
