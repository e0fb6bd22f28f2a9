// Time of a copy between two spaces. Seconds.
//   device - device         bytes read + bytes written over the device's memory bandwidth
//   pinned - device         latency + bytes over copy_up or copy_down. A cast runs on the device, so the link carries the host's type
//   pageable - device       the same link at kPageableShare: the driver stages through a pinned buffer
//   host - host             bytes read + bytes written over the host's rate (host_rate.h)
//   storage - host          bytes over the disk's read or write rate
//   storage - device        staged through host memory, pipelined: the slower of disk and link
#pragma once

#include "schedule/ir/op_key.h"
#include "schedule/machine/machine.h"

namespace steptwin {

double copy_seconds(const Machine& machine, const CopyPath& path);

// Assumption until calibration measures it: a staged copy reaches about half of what pinned memory gives.
inline constexpr double kPageableShare = 0.5;

}  // namespace steptwin
