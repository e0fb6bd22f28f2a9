// Memory of one rank on a GPU: device memory by cudaMalloc, pinned host memory by cudaHostAlloc, pageable host memory by malloc;
// storage is host memory too, as on the CPU backend. Blocks stay with the
// rank's pool (exec/cpu/buffer_pool.h), which is the cache; warm-up fills it, so that no step allocates.
// Reads and writes go through `stream`, the rank's first lane, which joins all lanes between steps.
#pragma once

#include <vector>

#include "exec/cpu/memory_source.h"
#include "exec/cuda/handles.h"

namespace steptwin {

class CudaMemory final : public MemorySource {
 public:
  CudaMemory(int device, StreamHandle stream) : device_(device), stream_(stream) {}
  ~CudaMemory() override;
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::byte* take(std::int64_t bytes, Space space) override;
  void give_back(std::byte* data, Space space) override;
  void clear(std::byte* data, std::int64_t bytes) override;
  void write(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  void read(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  void read_by_end_of_step(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  void fill_new(const std::function<void()>& fill) override;

  // The stream that reads and writes use while an op of that lane is put into it.
  void use_stream(StreamHandle stream) { stream_ = stream; }
  StreamHandle stream() const { return stream_; }
  // Deferred reads of step parity `slot`: where new ones are noted, and the moment their data has arrived.
  void open_slot(std::uint32_t slot) { slot_ = slot; }
  void deliver(std::uint32_t slot);

 private:
  struct Staged {
    std::byte* pinned = nullptr;
    std::byte* to = nullptr;
    std::int64_t bytes = 0;
  };
  std::byte* staging(std::int64_t bytes);

  int device_;
  StreamHandle stream_;
  std::uint32_t slot_ = 0;
  std::vector<Staged> reads_[2];
  std::vector<std::byte*> written_[2];                        // staging of writes
  std::vector<std::pair<std::int64_t, std::byte*>> staging_;  // free pinned blocks
  std::vector<std::pair<std::int64_t, std::byte*>> owned_;
};

}  // namespace steptwin
