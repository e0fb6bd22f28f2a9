// The buffers of one rank: resident ones for the whole run, the others as the instruction list says. Binds the accesses of an op to
// memory at its issue, because a block may change hands on its home lane before the op has run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "exec/comm/local.h"
#include "exec/cpu/buffer_pool.h"
#include "exec/ops/compute.h"
#include "schedule/ir/schedule.h"

namespace steptwin {

class RankMemory {
 public:
  // `comms`: the expanded communicators of the schedule. Allocates the resident buffers that are not lazy, zeroed.
  RankMemory(const Schedule& schedule, const Program& program, RankId rank, const std::vector<CommInstances>& comms,
             MemorySource& source = host_memory());

  BufferPool& pool() { return *pool_; }
  const BufferPool& pool() const { return *pool_; }
  MemorySource& source() const { return *source_; }
  RankId rank() const { return rank_; }

  // Called when a lazy buffer has been allocated, zeroed: fills in what it starts with.
  void when_lazy_begins(std::function<void(std::uint32_t buffer)> fill) { fill_lazy_ = std::move(fill); }
  void allocate(std::uint32_t buffer);  // of a lazy one: in the first repetition
  void drop(std::uint32_t buffer);
  // Local op numbers. begin_op at its MARK, end_op when it has ended.
  void begin_op(std::uint32_t op);
  void end_op(std::uint32_t op);
  std::vector<BufferPool::Block*> take_uses(std::uint32_t op);  // those that end_op would end: the caller ends them, later

  std::span<const BoundAccess> operands(std::uint32_t op) const { return ops_[op].operands; }
  MemberMemory member_memory(std::uint32_t op) const;
  bool does_work(std::uint32_t op) const { return does_work(op, *source_); }  // false: its guard says no
  bool does_work(std::uint32_t op, MemorySource& reader) const;               // reads the guard through `reader`
  std::byte* resident(std::uint32_t buffer) const;  // null: not resident, or lazy and not there yet

 private:
  struct OpMemory {
    std::vector<BoundAccess> operands;
    std::vector<BufferPool::Block*> foreign;
    const std::byte* guard = nullptr;
    std::int64_t guard_bytes = 0;
  };
  BoundAccess bind(const Access& access) const;
  void use(BufferId buffer, std::uint32_t lane, OpMemory& op);
  void allocate_resident(std::uint32_t buffer);

  const Schedule& schedule_;
  const Program& program_;
  RankId rank_;
  const std::vector<CommInstances>& comms_;
  MemorySource* source_;
  std::unique_ptr<BufferPool> pool_;
  std::vector<std::uint32_t> home_;             // [buffer] lane
  std::vector<BufferPool::Block*> blocks_;      // [buffer]
  std::vector<OpMemory> ops_;
  std::function<void(std::uint32_t)> fill_lazy_;
};

}  // namespace steptwin
