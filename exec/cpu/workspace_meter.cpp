#include "exec/cpu/workspace_meter.h"

#include <c10/core/CPUAllocator.h>
#include <torch/version.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace steptwin {
namespace {

constexpr std::size_t kHeader = 64;  // holds the size; LibTorch wants 64-byte alignment behind it

struct Meter {
  std::atomic<std::int64_t> now{0}, peak{0}, base{0};
};
Meter& meter() {
  static Meter instance;
  return instance;
}

void give_back(void* data) {
  if (data == nullptr) return;
  std::byte* const block = static_cast<std::byte*>(data) - kHeader;
  std::int64_t bytes = 0;
  std::memcpy(&bytes, block, sizeof bytes);
  meter().now -= bytes;
  std::free(block);
}

void* take(std::size_t bytes) {
  const std::size_t size = (bytes + kHeader + kHeader - 1) / kHeader * kHeader;
  auto* const block = static_cast<std::byte*>(std::aligned_alloc(kHeader, size));
  if (block == nullptr) throw std::bad_alloc();
  const auto counted = static_cast<std::int64_t>(bytes);
  std::memcpy(block, &counted, sizeof counted);
  const std::int64_t level = meter().now += counted;
  std::int64_t peak = meter().peak;
  while (level > peak && !meter().peak.compare_exchange_weak(peak, level)) {
  }
  return block + kHeader;
}

class CountingAllocator final : public at::Allocator {
 public:
#if TORCH_VERSION_MAJOR >= 2
  at::DataPtr allocate(std::size_t bytes) override { return make(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
#else
  at::DataPtr allocate(std::size_t bytes) const override { return make(bytes); }
#endif
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }

 private:
  static at::DataPtr make(std::size_t bytes) {
    void* const data = bytes == 0 ? nullptr : take(bytes);
    return {data, data, &give_back, at::Device(at::DeviceType::CPU)};
  }
};

}  // namespace

void install_workspace_meter() {
  static CountingAllocator allocator;
  constexpr std::uint8_t kAboveDefault = 100;
  c10::SetCPUAllocator(&allocator, kAboveDefault);
}

void reset_workspace_peak() {
  meter().base = meter().now.load();
  meter().peak = meter().now.load();
}

std::int64_t workspace_peak() { return meter().peak - meter().base; }

}  // namespace steptwin
