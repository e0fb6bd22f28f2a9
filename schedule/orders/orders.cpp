#include "schedule/orders/orders.h"

#include <fmt/format.h>

#include "schedule/base/error.h"
#include "schedule/orders/makers.h"

namespace steptwin {
namespace {

std::int32_t one_chunk(const OrderOptions&) { return 1; }

// (p-1)/(m+p-1): fill and drain of p-1 slots around m (specs/schedules.md 2.1, 2.2).
double fill_drain_rate(const OrderOptions& options) {
  return static_cast<double>(options.ranks - 1) / static_cast<double>(options.micro_batches + options.ranks - 1);
}

// A warm-up vector of one's own has no closed form.
double one_f_one_b_rate(const OrderOptions& options) { return options.warm_up.empty() ? fill_drain_rate(options) : -1; }

}  // namespace

const std::vector<OrderEntry>& order_table() {
  static const std::vector<OrderEntry> table = {
      {"gpipe", make_gpipe, one_chunk, fill_drain_rate},
      {"1f1b", make_one_f_one_b, one_chunk, one_f_one_b_rate},
  };
  return table;
}

const OrderEntry* find_order(const std::string& name) {
  for (const OrderEntry& entry : order_table()) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

void require_positive(const OrderOptions& options, const char* order) {
  if (options.ranks >= 1 && options.micro_batches >= 1) return;
  Diagnostic problem;
  problem.code = "ORDER-SIZE";
  problem.text = fmt::format("schedule '{}': {} ranks and {} micro-batches", order, options.ranks, options.micro_batches);
  problem.help = "use at least 1 of each";
  throw InputError(problem);
}

}  // namespace steptwin
