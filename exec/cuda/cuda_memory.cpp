#include "exec/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "exec/cuda/cuda_check.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

EnvironmentError no_memory(std::int64_t bytes, const char* where) {
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  cudaGetLastError();  // the refusal is reported here
  return {EnvironmentError::Kind::Memory,
          fmt::format("no {} memory for a buffer of {} bytes ({} of {} bytes of the device are free)", where, bytes, free, total),
          "a smaller model or batch, or fewer ranks on the device"};
}

}  // namespace

CudaMemory::~CudaMemory() {
  for (const auto& [bytes, data] : owned_) cudaFreeHost(data);
}

std::byte* CudaMemory::take(std::int64_t bytes, Space space) {
  cuda_check(cudaSetDevice(device_), "select the device");
  void* data = nullptr;
  switch (space) {
    case Space::Device:
      if (cudaMalloc(&data, static_cast<std::size_t>(bytes)) != cudaSuccess) throw no_memory(bytes, "device");
      break;
    case Space::Pinned:
      if (cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocDefault) != cudaSuccess) throw no_memory(bytes, "pinned host");
      break;
    case Space::Pageable:
    case Space::Storage:
      data = std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64));
      if (data == nullptr) throw no_memory(bytes, "pageable host");
      break;
  }
  return static_cast<std::byte*>(data);
}

void CudaMemory::give_back(std::byte* data, Space space) {
  switch (space) {
    case Space::Device:
      cudaFree(data);
      return;
    case Space::Pinned:
      cudaFreeHost(data);
      return;
    case Space::Pageable:
    case Space::Storage:
      std::free(data);
      return;
  }
}

void CudaMemory::clear(std::byte* data, std::int64_t bytes) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, data) == cudaSuccess && attributes.type == cudaMemoryTypeDevice) {
    cuda_check(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), stream_), "clear a buffer");
  } else {
    std::memset(data, 0, static_cast<std::size_t>(bytes));
  }
}

// The smallest free block that fits, else a new one of the next power of two.
std::byte* CudaMemory::staging(std::int64_t bytes) {
  auto best = staging_.end();
  for (auto it = staging_.begin(); it != staging_.end(); ++it)
    if (it->first >= bytes && (best == staging_.end() || it->first < best->first)) best = it;
  if (best != staging_.end()) {
    std::byte* const data = best->second;
    staging_.erase(best);
    return data;
  }
  std::int64_t size = 4096;
  while (size < bytes) size *= 2;
  owned_.emplace_back(size, take(size, Space::Pinned));
  return owned_.back().second;
}

// Small ones (a step's inputs) must not hold the host up, so they are staged in pinned memory; large ones (parameters at the start) may.
void CudaMemory::write(std::byte* to, const std::byte* from, std::int64_t bytes) {
  constexpr std::int64_t kLarge = 1 << 20;
  if (bytes > kLarge) {
    cuda_check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_), "write to a buffer");
    cuda_check(cudaStreamSynchronize(stream_), "write to a buffer");
    return;
  }
  std::byte* const pinned = staging(bytes);
  std::memcpy(pinned, from, static_cast<std::size_t>(bytes));
  cuda_check(cudaMemcpyAsync(to, pinned, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_), "write to a buffer");
  written_[slot_].push_back(pinned);
}

void CudaMemory::read(std::byte* to, const std::byte* from, std::int64_t bytes) {
  cuda_check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_), "read from a buffer");
  cuda_check(cudaStreamSynchronize(stream_), "read from a buffer");
}

void CudaMemory::read_by_end_of_step(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::byte* const pinned = staging(bytes);
  cuda_check(cudaMemcpyAsync(pinned, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_), "read from a buffer");
  reads_[slot_].push_back({pinned, to, bytes});
}

// On the default stream, which the lanes' streams do not wait for, nor it for them.
void CudaMemory::fill_new(const std::function<void()>& fill) {
  const StreamHandle lane = std::exchange(stream_, StreamHandle{});
  fill();
  cuda_check(cudaStreamSynchronize(stream_), "fill new memory");
  stream_ = lane;
}

void CudaMemory::deliver(std::uint32_t slot) {
  const auto free = [this](std::byte* pinned) {
    const auto owner = std::find_if(owned_.begin(), owned_.end(), [&](const auto& block) { return block.second == pinned; });
    staging_.push_back(*owner);
  };
  for (const Staged& read : reads_[slot]) {
    std::memcpy(read.to, read.pinned, static_cast<std::size_t>(read.bytes));
    free(read.pinned);
  }
  for (std::byte* pinned : written_[slot]) free(pinned);
  reads_[slot].clear();
  written_[slot].clear();
}

}  // namespace steptwin
