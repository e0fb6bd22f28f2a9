#include "exec/cpu/buffer_pool.h"

#include <algorithm>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

constexpr std::int64_t kAlignment = 64;  // sizes that differ by less share their memory

std::int64_t rounded(std::int64_t bytes) { return (std::max<std::int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

BufferPool::~BufferPool() {
  for (const auto& [data, space] : memory_) source_.give_back(data, space);
}

const BufferPool::Level& BufferPool::level(Space space, Curve curve) const {
  return levels_[curve == Curve::Allocated ? 0 : 1][static_cast<std::size_t>(space)];
}

void BufferPool::change(const Block& block, Curve curve, std::int64_t bytes) {
  Level& level = levels_[curve == Curve::Allocated ? 0 : 1][static_cast<std::size_t>(block.space)];
  const auto category = static_cast<std::size_t>(block.category);
  level.categories[category] += bytes;
  level.total += bytes;
  if (listener_) listener_({block.space, curve, block.category, level.categories[category], level.total});
}

std::byte* BufferPool::take(const Block& block) {
  const std::int64_t size = rounded(block.bytes);
  std::vector<std::byte*>& free = free_[static_cast<std::size_t>(block.space)][{block.home, size}];
  if (!free.empty()) {
    std::byte* const data = free.back();
    free.pop_back();
    return data;
  }
  std::byte* const data = source_.take(size, block.space);
  memory_.emplace_back(data, block.space);
  reserved_[static_cast<std::size_t>(block.space)] += size;
  if (listener_) listener_({block.space, Curve::Reserved, block.category, 0, reserved_[static_cast<std::size_t>(block.space)]});
  return data;
}

BufferPool::Block* BufferPool::allocate(std::int64_t bytes, Space space, Category category, std::uint32_t home_lane) {
  if (look_) look_();
  if (spare_.empty()) {
    blocks_.push_back(std::make_unique<Block>());
    spare_.push_back(blocks_.back().get());
  }
  Block* const block = spare_.back();
  *block = {nullptr, bytes, space, category, home_lane, 0, false};
  block->data = take(*block);
  spare_.pop_back();
  change(*block, Curve::Allocated, bytes);
  change(*block, Curve::Active, bytes);
  return block;
}

void BufferPool::give_back(Block* block) {
  change(*block, Curve::Active, -block->bytes);
  free_[static_cast<std::size_t>(block->space)][{block->home, rounded(block->bytes)}].push_back(block->data);
  spare_.push_back(block);
}

void BufferPool::drop(Block* block) {
  invariant(!block->dropped, "a block is dropped once");
  block->dropped = true;
  change(*block, Curve::Allocated, -block->bytes);
  if (block->foreign_uses == 0) give_back(block);
}

bool BufferPool::begin_use(Block* block, std::uint32_t lane) {
  if (lane == block->home) return false;
  ++block->foreign_uses;
  return true;
}

void BufferPool::end_use(Block* block) {
  invariant(block->foreign_uses > 0, "a use ends once");
  if (--block->foreign_uses == 0 && block->dropped) give_back(block);
}

}  // namespace steptwin
