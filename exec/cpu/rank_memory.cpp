#include "exec/cpu/rank_memory.h"

#include <algorithm>
#include <utility>

#include "schedule/base/error.h"
#include "schedule/ir/liveness.h"

namespace steptwin {

RankMemory::RankMemory(const Schedule& schedule, const Program& program, RankId rank, const std::vector<CommInstances>& comms,
                       MemorySource& source)
    : schedule_(schedule),
      program_(program),
      rank_(rank),
      comms_(comms),
      source_(&source),
      pool_(std::make_unique<BufferPool>(source)),
      blocks_(program.buffers.size()),
      ops_(program.op_count) {
  for (const Lifetime& life : lifetimes(schedule, program)) home_.push_back(life.home.valid() ? life.home.value : 0);
  for (std::uint32_t b = 0; b < program.buffers.size(); ++b)
    if (held_before(program.buffers[b], Repetition::First)) allocate_resident(b);
}

// Memory of its own, not the pool's: it is never another buffer's, so it may be cleared while ops run.
void RankMemory::allocate_resident(std::uint32_t buffer) {
  constexpr std::uint32_t kNoLane = 0xffffffffu;
  const Buffer& b = program_.buffers[buffer];
  blocks_[buffer] = pool_->allocate(b.bytes.value, b.space, b.category, kNoLane);
  source_->clear(blocks_[buffer]->data, b.bytes.value);
}

void RankMemory::allocate(std::uint32_t buffer) {
  const Buffer& b = program_.buffers[buffer];
  if (b.lazy) {
    if (blocks_[buffer] != nullptr) return;
    source_->fill_new([&] {
      allocate_resident(buffer);
      if (fill_lazy_) fill_lazy_(buffer);
    });
    return;
  }
  invariant(blocks_[buffer] == nullptr, "a buffer is allocated once a step");
  blocks_[buffer] = pool_->allocate(b.bytes.value, b.space, b.category, home_[buffer]);
}

void RankMemory::drop(std::uint32_t buffer) {
  pool_->drop(blocks_[buffer]);
  blocks_[buffer] = nullptr;
}

BoundAccess RankMemory::bind(const Access& access) const {
  const Buffer& buffer = program_.buffers[access.buffer.value];
  const BufferPool::Block* const block = blocks_[access.buffer.value];
  std::uint32_t member = 0, members = 1;
  if (access.part.kind == Part::Kind::Shard) {
    const CommInstances& comm = comms_[access.part.a];
    member = comm.member_of[rank_.value];
    members = static_cast<std::uint32_t>(comm.members[comm.instance_of[rank_.value]].size());
  }
  const ByteRange range = byte_range(buffer, schedule_, access.part, member, members);
  BoundAccess bound;
  bound.data = block == nullptr ? nullptr : block->data + range.first;
  bound.bytes = range.size;
  bound.layout = buffer.layout.valid() ? &schedule_.layouts[buffer.layout.value] : nullptr;
  bound.shard = buffer.shard.valid();
  bound.part = access.part;
  bound.mode = access.mode;
  bound.category = buffer.category;
  bound.space = buffer.space;
  return bound;
}

void RankMemory::use(BufferId buffer, std::uint32_t lane, OpMemory& op) {
  BufferPool::Block* const block = blocks_[buffer.value];
  if (block == nullptr || program_.buffers[buffer.value].resident) return;
  if (std::find(op.foreign.begin(), op.foreign.end(), block) != op.foreign.end()) return;
  if (pool_->begin_use(block, lane)) op.foreign.push_back(block);
}

void RankMemory::begin_op(std::uint32_t local) {
  const OpId id(program_.first_op.value + local);
  const Op& op = schedule_.ops[id.value];
  OpMemory& memory = ops_[local];
  memory.operands.clear();
  memory.foreign.clear();
  for (const Access& access : schedule_.accesses_of(id)) {
    memory.operands.push_back(bind(access));
    if (op.lane.valid()) use(access.buffer, op.lane.value, memory);
  }
  if (!op.guard.valid()) return;
  const BufferPool::Block* const guard = blocks_[op.guard.value];
  memory.guard = guard == nullptr ? nullptr : guard->data;
  memory.guard_bytes = program_.buffers[op.guard.value].bytes.value;
  if (op.lane.valid()) use(op.guard, op.lane.value, memory);
}

void RankMemory::end_op(std::uint32_t op) {
  for (BufferPool::Block* block : ops_[op].foreign) pool_->end_use(block);
  ops_[op].foreign.clear();
}

std::vector<BufferPool::Block*> RankMemory::take_uses(std::uint32_t op) { return std::exchange(ops_[op].foreign, {}); }

MemberMemory RankMemory::member_memory(std::uint32_t op) const {
  MemberMemory memory;
  for (const BoundAccess& access : ops_[op].operands) {
    if (access.mode == AccessMode::Read || access.mode == AccessMode::Update) memory.in.add(access.data, access.bytes);
    if (access.mode == AccessMode::Write || access.mode == AccessMode::Update) memory.out.add(access.data, access.bytes);
  }
  return memory;
}

bool RankMemory::does_work(std::uint32_t op, MemorySource& reader) const {
  const OpMemory& memory = ops_[op];
  if (memory.guard == nullptr) return true;
  std::vector<std::byte> value(static_cast<std::size_t>(memory.guard_bytes));
  reader.read(value.data(), memory.guard, memory.guard_bytes);
  return std::any_of(value.begin(), value.end(), [](std::byte b) { return b != std::byte{0}; });
}

std::byte* RankMemory::resident(std::uint32_t buffer) const {
  return program_.buffers[buffer].resident && blocks_[buffer] != nullptr ? blocks_[buffer]->data : nullptr;
}

}  // namespace steptwin
