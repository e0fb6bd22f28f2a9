// Time of a copy between two spaces. Seconds.
//   device - device         bytes read + bytes written over the device's memory bandwidth
//   pinned - device         latency + bytes over copy_up or copy_down. A cast runs on the device, so the link carries the host's type
//   pageable - device       the same link at kPageableShare: the driver stages through a pinned buffer
//   host - host             bytes read + bytes written over kHostMemcpy
//   storage - host          bytes over the disk's read or write rate
//   storage - device        staged through host memory, pipelined: the slower of disk and link
#pragma once

#include "schedule/ir/op_key.h"
#include "schedule/machine/machine.h"

namespace steptwin {

double copy_seconds(const Machine& machine, const CopyPath& path);

// Assumptions until calibration measures them: a staged copy reaches about half of what pinned memory gives; one thread's memcpy
// moves about 20 GB/s, reads and writes together.
inline constexpr double kPageableShare = 0.5;
inline constexpr BytesPerSecond kHostMemcpy{20e9};

}  // namespace steptwin
