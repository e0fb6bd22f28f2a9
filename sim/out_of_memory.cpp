#include "sim/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "schedule/ir/text.h"

namespace steptwin {
namespace {

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

// "37.5 GiB"; small holders in MiB, so that none reads 0.
std::string size_text(std::int64_t bytes) {
  return bytes >= (std::int64_t{1} << 30) ? fmt::format("{:.1f} GiB", gib(bytes)) : fmt::format("{:.1f} MiB", gib(bytes) * 1024);
}

std::string holders_text(const std::array<std::int64_t, kCategories>& held) {
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t c = 0; c < kCategories; ++c)
    if (held[c] > 0) order.emplace_back(-held[c], c);
  std::sort(order.begin(), order.end());
  std::string text;
  for (const auto& [bytes, category] : order)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<Category>(category)), size_text(-bytes));
  return text;
}

}  // namespace

std::optional<MemoryRequest> first_over_capacity(const Schedule&, const MemoryPlan& plan, Space space, Bytes capacity) {
  if (capacity.value == 0) return std::nullopt;
  const auto s = static_cast<std::size_t>(space);
  std::int64_t in_use = plan.resident(s);
  if (in_use > capacity.value) return MemoryRequest{0, in_use, 0, capacity.value};
  const auto& buffers = plan.buffers();
  std::size_t drop = 0;
  for (std::size_t next = 0; next < buffers.size();) {
    const std::uint32_t op = buffers[next].first;
    for (; drop < plan.by_last().size() && buffers[plan.by_last()[drop]].last < op; ++drop) {
      const auto& b = buffers[plan.by_last()[drop]];
      if (b.space == s) in_use -= b.bytes;
    }
    std::int64_t request = 0;
    for (; next < buffers.size() && buffers[next].first == op; ++next)
      if (buffers[next].space == s) request += buffers[next].bytes;
    if (in_use + request > capacity.value) return MemoryRequest{op, request, in_use, capacity.value};
    in_use += request;
  }
  return std::nullopt;
}

Outcome out_of_memory(const Schedule& schedule, const MemoryPlan& plan, RankId rank, const MemoryRequest& request, SimTime at) {
  Shortage shortage{Space::Device,    "", rank, OpId(plan.first_op().value + request.op), false, at, request.bytes, request.in_use,
                    request.capacity, {}};
  shortage.resident = request.in_use == 0 && request.op == 0 && request.bytes == plan.resident(static_cast<std::size_t>(Space::Device));
  shortage.held = plan.resident_by_category(static_cast<std::size_t>(Space::Device));
  for (const auto& b : plan.buffers())
    if (b.space == static_cast<std::uint8_t>(Space::Device) && b.first <= request.op && request.op <= b.last)
      shortage.held[b.category] += b.bytes;
  return out_of_memory(schedule, shortage);
}

Outcome out_of_memory(const Schedule& schedule, const Shortage& shortage) {
  Outcome out;
  out.status = Status::OutOfMemory;
  out.rank = shortage.rank;
  out.op = shortage.op;
  out.requested = Bytes(shortage.bytes);
  out.capacity = Bytes(shortage.capacity);
  out.in_use = Bytes(shortage.in_use);
  out.space = shortage.space;
  const std::string when =
      shortage.resident ? "before the first op" : fmt::format("at {:.3f} ms", static_cast<double>(ns(shortage.at)) / 1e6);
  const std::string where = shortage.memory.empty() ? "" : fmt::format(" in the {}", shortage.memory);
  out.text = fmt::format("out of memory on rank {}{} {}: needs {:.1f} GiB, capacity {:.1f} GiB", shortage.rank.value, where, when,
                         gib(shortage.in_use + shortage.bytes), gib(shortage.capacity));
  out.details.push_back(shortage.resident ? "triggered by  the resident buffers alone, before the first op"
                                          : fmt::format("triggered by  `{}` (+{})", print_op(schedule, out.op), size_text(shortage.bytes)));
  out.details.push_back("in use        " + holders_text(shortage.held));
  return out;
}

}  // namespace steptwin
