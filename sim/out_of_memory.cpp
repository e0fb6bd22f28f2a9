#include "sim/out_of_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/ir/text.h"

namespace steptwin {
namespace {

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

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
  Outcome out;
  out.status = Status::OutOfMemory;
  out.rank = rank;
  out.op = OpId(plan.first_op().value + request.op);
  out.requested = Bytes(request.bytes);
  out.capacity = Bytes(request.capacity);
  out.in_use = Bytes(request.in_use);
  out.text = fmt::format("out of memory on rank {} at {:.3f} ms: needs {:.1f} GiB, capacity {:.1f} GiB", rank.value,
                         static_cast<double>(ns(at)) / 1e6, gib(request.in_use + request.bytes), gib(request.capacity));
  std::array<std::int64_t, kCategories> held = plan.resident_by_category(static_cast<std::size_t>(Space::Device));
  for (const auto& b : plan.buffers())
    if (b.space == static_cast<std::uint8_t>(Space::Device) && b.first <= request.op && request.op <= b.last) held[b.category] += b.bytes;
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t c = 0; c < kCategories; ++c)
    if (held[c] > 0) order.emplace_back(-held[c], c);
  std::sort(order.begin(), order.end());
  if (request.in_use == 0 && request.op == 0) out.details.push_back("triggered by  the resident buffers alone, before the first op");
  else out.details.push_back(fmt::format("triggered by  `{}` (+{:.3f} GiB)", print_op(schedule, out.op), gib(request.bytes)));
  std::string holders = "in use       ";
  for (const auto& [bytes, category] : order) holders += fmt::format(" {} {:.2f} GiB", name_of(static_cast<Category>(category)), gib(-bytes));
  out.details.push_back(holders);
  return out;
}

}  // namespace steptwin
