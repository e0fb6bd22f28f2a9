#include "schedule/orders/makers.h"

namespace steptwin {

ActionGrid make_gpipe(const OrderOptions& options) {
  require_positive(options, "gpipe");
  const std::int32_t m = options.micro_batches;
  ActionGrid grid(static_cast<std::size_t>(options.ranks));
  for (std::int32_t rank = 0; rank < options.ranks; ++rank) {
    ActionList& list = grid[static_cast<std::size_t>(rank)];
    list.reserve(2 * static_cast<std::size_t>(m));
    for (std::int32_t i = 0; i < m; ++i) list.push_back({ActionKind::F, rank, i});
    for (std::int32_t i = 0; i < m; ++i) list.push_back({ActionKind::B, rank, options.backward_descending ? m - 1 - i : i});
  }
  return grid;
}

}  // namespace steptwin
