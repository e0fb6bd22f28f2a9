// Green contexts: a device's multiprocessors split into equal disjoint parts inside one process (CUDA driver API). Memory, L2, copy engines
// and power stay shared. Hopper: a part has a multiple of 8 multiprocessors, at least 8; what the division leaves over lies idle.
#pragma once

#include <memory>
#include <vector>

#include "exec/cuda/handles.h"

namespace steptwin {

class SmPartitions {
 public:
  // Throws EnvironmentError (Device) when the device cannot be split so, with the largest possible number.
  SmPartitions(int device, std::uint32_t parts);
  ~SmPartitions();
  SmPartitions(const SmPartitions&) = delete;
  SmPartitions& operator=(const SmPartitions&) = delete;

  // A non-blocking stream of that part; the caller destroys it.
  StreamHandle stream(std::uint32_t part, int priority) const;
  std::uint32_t multiprocessors(std::uint32_t part) const;  // as the driver gave it

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace steptwin
