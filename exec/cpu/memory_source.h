// Where the memory of a rank comes from, and how the host reaches it. The CPU's is host memory; a GPU's spaces differ (exec/cuda/cuda_memory.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "schedule/ir/schedule.h"

namespace steptwin {

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Aligned to 64 bytes or more. Throws EnvironmentError (Memory) when there is none left, (Device) for a space it does not have.
  virtual std::byte* take(std::int64_t bytes, Space space) = 0;
  virtual void give_back(std::byte* data, Space space) = 0;
  // Between the host and a rank's buffers. All are ordered behind what the rank has issued so far and before what it issues next.
  virtual void clear(std::byte* data, std::int64_t bytes) = 0;
  virtual void write(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;  // `from` may change after the call
  virtual void read(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;   // `to` is filled when it returns
  virtual void read_by_end_of_step(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  // Runs `fill`, whose clears and writes go to memory that nothing issued so far touches: they wait for none of it, and have happened at
  // the return.
  virtual void fill_new(const std::function<void()>& fill) = 0;
};

// Every space is host memory; reads and writes are immediate.
MemorySource& host_memory();

}  // namespace steptwin
