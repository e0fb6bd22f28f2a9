// The memory of one rank: a counting allocator. It knows nothing of instruction lists or ops; what it counts is what was asked of it, so
// its curves are measurements. Stream-ordered, one free list per lane (DESIGN 6): a dropped block may be used again on its home lane at once,
// because that lane is a FIFO; while an op of another lane still uses it, it stays `active` and goes back when that op has ended.
//   allocated  blocks between allocate() and drop()
//   active     the same plus dropped blocks that another lane still uses
//   reserved   what was taken from the system
// Not thread-safe: the owner holds a lock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "exec/cpu/memory_source.h"
#include "schedule/ir/schedule.h"
#include "traces/trace.h"

namespace steptwin {

class BufferPool {
 public:
  // Called at every change of a curve; `level` of the category and in total after it.
  struct Change {
    Space space;
    Curve curve;
    Category category;
    std::int64_t in_category, total;
  };
  using Listener = std::function<void(const Change&)>;

  struct Block {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    Space space = Space::Device;
    Category category = Category::Other;
    std::uint32_t home = 0;
    std::uint32_t foreign_uses = 0;
    bool dropped = false;
  };

  explicit BufferPool(MemorySource& source = host_memory()) : source_(source) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  void listen(Listener listener) { listener_ = std::move(listener); }
  // Called before an allocation: whoever learns late that a use has ended (events of a device) calls end_use there.
  void before_allocation(std::function<void()> look) { look_ = std::move(look); }

  // Throws what the source throws when there is no memory left.
  Block* allocate(std::int64_t bytes, Space space, Category category, std::uint32_t home_lane);
  void drop(Block* block);                          // the owner's last use has been issued
  // An op of `lane` that uses it has been issued. True: the use is foreign and must be ended with end_use; otherwise the block may already
  // be someone else's by then.
  bool begin_use(Block* block, std::uint32_t lane);
  void end_use(Block* block);
  std::int64_t allocated(Space space) const { return levels_[0][static_cast<std::size_t>(space)].total; }
  const std::array<std::int64_t, kCategories>& categories(Space space, Curve curve) const { return level(space, curve).categories; }
  std::int64_t reserved(Space space) const { return reserved_[static_cast<std::size_t>(space)]; }

 private:
  struct Level {
    std::array<std::int64_t, kCategories> categories{};
    std::int64_t total = 0;
  };
  const Level& level(Space space, Curve curve) const;
  void change(const Block& block, Curve curve, std::int64_t bytes);
  void give_back(Block* block);
  std::byte* take(const Block& block);

  MemorySource& source_;
  Listener listener_;
  std::function<void()> look_;
  std::array<std::array<Level, kSpaces>, 2> levels_{};  // allocated, active
  std::array<std::int64_t, kSpaces> reserved_{};
  std::map<std::pair<std::uint32_t, std::int64_t>, std::vector<std::byte*>> free_[kSpaces];  // (home lane, bytes)
  std::vector<std::pair<std::byte*, Space>> memory_;  // taken from the source
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> spare_;
};

}  // namespace steptwin
