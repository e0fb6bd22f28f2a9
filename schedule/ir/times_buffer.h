// Room for the times of every op: large, written once in many slow streams, so it asks for huge pages where the system has
// them (fewer page faults and TLB misses). Contents start as zero. Throws std::bad_alloc.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

#include "schedule/ir/loop.h"

namespace steptwin {

class TimesBuffer {
 public:
  explicit TimesBuffer(std::size_t entries) : bytes_(entries * sizeof(OpTimes) + kSlack) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    ::madvise(data_, bytes_, MADV_HUGEPAGE);  // advice only: no harm where it is refused
  }
  TimesBuffer(const TimesBuffer&) = delete;
  TimesBuffer& operator=(const TimesBuffer&) = delete;
  ~TimesBuffer() { ::munmap(data_, bytes_); }

  OpTimes* data() { return static_cast<OpTimes*>(data_); }

 private:
  static constexpr std::size_t kSlack = 4096;  // the loop prefetches a little past the end
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

}  // namespace steptwin
