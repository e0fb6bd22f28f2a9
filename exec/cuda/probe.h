// What a GPU, its driver and its libraries take for things that are no op of a schedule. Medians and 90th percentiles of repeated calls on an
// idle device.
#pragma once

#include <functional>
#include <vector>

#include "exec/backend.h"

namespace steptwin {

// kernel_launch_ns        host time of a LibTorch op that launches one small kernel (`eager_op`), the queue of the stream never full
// event_record_ns, stream_wait_ns, event_query_ns   host time of a call
// event_gap_ns            device time between two events recorded one after the other: what a measured op's two events cost it
// device_allocation_ns, pinned_allocation_ns        cudaMalloc and cudaHostAlloc of 64 MiB; with their release
// context_bytes           memory in use once the context and the kernels are loaded, before any buffer
// each but the last also as NAME_p90
std::vector<RunFact> probe_device(int device, const std::function<void()>& eager_op);

// Clock of the multiprocessors now, MHz; 0 where NVML does not tell.
double multiprocessor_clock(int device);

}  // namespace steptwin
