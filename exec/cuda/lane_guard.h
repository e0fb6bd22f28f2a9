// While it lives, LibTorch's calls of this thread go to this stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace steptwin {

class LaneGuard {
 public:
  LaneGuard(cudaStream_t stream, int device);
  ~LaneGuard();
  LaneGuard(const LaneGuard&) = delete;
  LaneGuard& operator=(const LaneGuard&) = delete;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace steptwin
