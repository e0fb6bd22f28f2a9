#include "cli/free_memory.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "cli/format.h"
#include "schedule/base/error.h"

namespace steptwin {

namespace {

// The value of "MemAvailable:   123 kB" in /proc/meminfo.
std::optional<std::int64_t> free_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  }
  return std::nullopt;
}

std::optional<std::int64_t> number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;  // "max": no limit
  return std::nullopt;
}

// Control group v2, as a container sees its own.
std::optional<std::int64_t> group_memory() {
  const auto limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit) return std::nullopt;
  return std::max<std::int64_t>(*limit - used.value_or(0), 0);
}

std::optional<std::int64_t> process_memory() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > INT64_MAX) return std::nullopt;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

}  // namespace

std::optional<Bytes> available_memory() {
  std::optional<Bytes> least;
  for (const auto& limit : {free_memory(), group_memory(), process_memory()}) {
    if (limit && (!least || Bytes(*limit) < *least)) least = Bytes(*limit);
  }
  return least;
}

void require_memory(double ops, double bytes_per_op) {
  const std::optional<Bytes> available = available_memory();
  const double needed = ops * bytes_per_op;
  if (!available || needed <= static_cast<double>(available->value)) return;
  throw EnvironmentError(EnvironmentError::Kind::Memory,
                         fmt::format("a schedule of about {} ops takes about {}, but this computer has {} free",
                                     human_count(static_cast<std::int64_t>(ops)), human_bytes(Bytes(static_cast<std::int64_t>(needed))),
                                     human_bytes(*available)),
                         "fewer micro-batches make fewer ops; --trace summary needs less memory");
}

}  // namespace steptwin
