// While it lives, LibTorch's calls of this thread go to this stream.
#pragma once

#include <memory>

#include "exec/cuda/handles.h"

namespace steptwin {

class LaneGuard {
 public:
  LaneGuard(StreamHandle stream, int device);
  ~LaneGuard();
  LaneGuard(const LaneGuard&) = delete;
  LaneGuard& operator=(const LaneGuard&) = delete;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace steptwin
