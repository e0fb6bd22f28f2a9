#include "sim/cost/copy_path.h"

#include <algorithm>

#include "schedule/base/error.h"
#include "sim/cost/host_rate.h"
#include "sim/cost/rates.h"
#include "sim/cost/roofline.h"

namespace steptwin {
namespace {

bool is_host(Space space) { return space == Space::Pinned || space == Space::Pageable; }

double link_seconds(const Link& link, const char* figure, Bytes bytes, Space host) {
  const double share = host == Space::Pageable ? kPageableShare : 1;
  return seconds(link.latency) + real(bytes) / (share * needed_rate(link.bandwidth.value * link.efficiency, figure, "a copy"));
}

double up_seconds(const Machine& machine, Bytes bytes, Space host) {
  return link_seconds(machine.copy_up, "bandwidth from host to device", bytes, host);
}

double down_seconds(const Machine& machine, Bytes bytes, Space host) {
  return link_seconds(machine.copy_down, "bandwidth from device to host", bytes, host);
}

double disk_seconds(const Machine& machine, const CopyPath& path) {
  const Disk disk = machine.disk.value_or(Disk{});
  double time = 0;
  if (path.from == Space::Storage) time += real(path.read) / needed_rate(disk.read.value, "disk read rate", "a copy from storage");
  if (path.to == Space::Storage) time += real(path.written) / needed_rate(disk.write.value, "disk write rate", "a copy to storage");
  return time;
}

}  // namespace

double copy_seconds(const Machine& machine, const CopyPath& path) {
  if (path.from == Space::Storage || path.to == Space::Storage) {
    const double disk = disk_seconds(machine, path);
    if (path.to == Space::Device) return std::max(disk, up_seconds(machine, path.read, Space::Pinned));
    if (path.from == Space::Device) return std::max(disk, down_seconds(machine, path.written, Space::Pinned));
    return disk;
  }
  if (is_host(path.from) && is_host(path.to)) return (path.read + path.written) / host_rate(machine);
  if (is_host(path.from)) return up_seconds(machine, path.read, path.from);
  if (is_host(path.to)) return down_seconds(machine, path.written, path.to);
  return device_copy_seconds(machine.device, path.read, path.written);
}

}  // namespace steptwin
