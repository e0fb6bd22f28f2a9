#include "cli/free_memory.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "cli/format.h"
#include "schedule/base/error.h"
#include "schedule/ir/liveness.h"
#include "traces/trace.h"

namespace steptwin {

namespace {

constexpr double kMostBytes = 0x1p62;

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

void require(double bytes, const std::string& what, const std::string& help) {
  const std::optional<Bytes> available = available_memory();
  if (!available || bytes <= static_cast<double>(available->value)) return;
  throw EnvironmentError(EnvironmentError::Kind::Memory,
                         fmt::format("{} {}, but this computer has {} free", what,
                                     human_bytes(Bytes(static_cast<std::int64_t>(std::min(bytes, kMostBytes)))), human_bytes(*available)),
                         help);
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
  require(ops * bytes_per_op, fmt::format("a schedule of about {} ops takes about", human_count(static_cast<std::int64_t>(ops))),
          "fewer micro-batches make fewer ops; --trace summary needs less memory");
}

void require_execution_memory(const Schedule& schedule, std::uint32_t steps, std::optional<RankId> only) {
  double buffers = 0, spans = 0;
  for (const Program& program : schedule.programs) {
    const auto here = std::count_if(program.ranks.begin(), program.ranks.end(), [&](RankId rank) { return !only || rank == *only; });
    const auto ranks = static_cast<double>(here);
    for (std::size_t s = 0; s < kSpaces; ++s) {
      const std::vector<Bytes> curve = allocated_curve(schedule, program, static_cast<Space>(s));
      if (!curve.empty()) buffers += ranks * static_cast<double>(std::max_element(curve.begin(), curve.end())->value);
    }
    spans += ranks * static_cast<double>(sizeof(Span)) * program.op_count * steps;
  }
  const std::string whose = only ? fmt::format("rank {}", only->value) : "all ranks";
  require(buffers + spans, fmt::format("the buffers of {} and the spans of the measured steps take at least", whose),
          "a smaller model or batch, fewer ranks, or fewer --steps; all ranks share the memory of this computer");
}

}  // namespace steptwin
