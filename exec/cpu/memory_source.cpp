#include "exec/cpu/memory_source.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line; every vector load of the CPU is aligned

class HostMemory final : public MemorySource {
 public:
  std::byte* take(std::int64_t bytes, Space) override {
    const std::size_t size = (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
    if (data == nullptr)
      throw EnvironmentError(EnvironmentError::Kind::Memory, fmt::format("this computer has no memory for a buffer of {} bytes", bytes),
                             "a smaller model or batch, or fewer ranks");
    return data;
  }
  void give_back(std::byte* data, Space) override { std::free(data); }
  void clear(std::byte* data, std::int64_t bytes) override { std::memset(data, 0, static_cast<std::size_t>(bytes)); }
  void write(std::byte* to, const std::byte* from, std::int64_t bytes) override { copy(to, from, bytes); }
  void read(std::byte* to, const std::byte* from, std::int64_t bytes) override { copy(to, from, bytes); }
  void read_by_end_of_step(std::byte* to, const std::byte* from, std::int64_t bytes) override { copy(to, from, bytes); }
  void fill_new(const std::function<void()>& fill) override { fill(); }

 private:
  static void copy(std::byte* to, const std::byte* from, std::int64_t bytes) { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }
};

}  // namespace

MemorySource& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace steptwin
