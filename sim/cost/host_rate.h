// Work on the host's cores is bound by main memory: bytes over what a rank's cores stream through it.
#pragma once

#include "schedule/ir/op.h"
#include "schedule/machine/machine.h"

namespace steptwin {

// Assumption until a profile states host.memory_bandwidth_gb_per_s: one thread's memcpy moves about 20 GB/s, reads and writes together.
inline constexpr BytesPerSecond kHostMemcpy{20e9};

inline BytesPerSecond host_rate(const Machine& machine) { return machine.host.memory_bandwidth.value_or(kHostMemcpy); }
inline double host_work_seconds(const Machine& machine, const Work& work) { return work.bytes() / host_rate(machine); }

}  // namespace steptwin
