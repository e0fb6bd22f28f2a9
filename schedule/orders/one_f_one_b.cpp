#include <fmt/format.h>

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/orders/makers.h"

namespace steptwin {
namespace {

[[noreturn]] void refuse(std::string text, std::string help) {
  Diagnostic problem;
  problem.code = "WARM-UP";
  problem.text = std::move(text);
  problem.help = std::move(help);
  throw InputError(problem);
}

// Forwards before the first (F, B) pair: the option's entry, else p-1-r; never more than m.
std::int32_t warm_up_of(const OrderOptions& options, std::int32_t rank) {
  const std::int64_t asked = options.warm_up.empty() ? options.ranks - 1 - rank : options.warm_up[static_cast<std::size_t>(rank)];
  return static_cast<std::int32_t>(std::min<std::int64_t>(asked, options.micro_batches));
}

void check_warm_up(const OrderOptions& options) {
  if (options.warm_up.empty()) return;
  if (options.warm_up.size() != static_cast<std::size_t>(options.ranks)) {
    refuse(fmt::format("schedule '1f1b': warm_up has {} entries for {} pipeline ranks", options.warm_up.size(), options.ranks),
           "give one number of forwards per pipeline rank");
  }
  for (const std::int64_t w : options.warm_up) {
    if (w < 0) refuse(fmt::format("schedule '1f1b': warm_up entry {} is negative", w), "use 0 or more forwards");
  }
}

}  // namespace

ActionGrid make_one_f_one_b(const OrderOptions& options) {
  require_positive(options, "1f1b");
  check_warm_up(options);
  const std::int32_t m = options.micro_batches;
  ActionGrid grid(static_cast<std::size_t>(options.ranks));
  for (std::int32_t rank = 0; rank < options.ranks; ++rank) {
    ActionList& list = grid[static_cast<std::size_t>(rank)];
    list.reserve(2 * static_cast<std::size_t>(m));
    const std::int32_t warm_up = warm_up_of(options, rank);
    for (std::int32_t i = 0; i < warm_up; ++i) list.push_back({ActionKind::F, rank, i});
    for (std::int32_t i = warm_up; i < m; ++i) {
      list.push_back({ActionKind::F, rank, i});
      list.push_back({ActionKind::B, rank, i - warm_up});
    }
    for (std::int32_t i = m - warm_up; i < m; ++i) list.push_back({ActionKind::B, rank, i});
  }
  return grid;
}

}  // namespace steptwin
