#include "schedule/place_messages.h"

#include <algorithm>
#include <map>

#include "schedule/orders/actions.h"
#include "schedule/orders/findings.h"

namespace steptwin {
namespace {

ActionGrid place_directly(const ActionGrid& grid, const std::vector<std::int32_t>& rank_of_stage) {
  ActionGrid out(grid.size());
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    out[rank].reserve(2 * grid[rank].size());
    for (const Action& action : grid[rank]) {
      const Message needed = message_before(action, rank_of_stage), made = message_after(action, rank_of_stage);
      if (needed.exists()) out[rank].push_back(needed.recv);
      out[rank].push_back(action);
      if (made.exists()) out[rank].push_back(made.send);
    }
  }
  return out;
}

// Sender's stage and micro-batch of the messages of one ordered pair of ranks and direction, as one end sees them.
using Sequence = std::vector<std::pair<std::int32_t, std::int32_t>>;
using Sequences = std::map<std::tuple<std::int32_t, std::int32_t, bool>, Sequence>;

bool same_order_at_both_ends(const ActionGrid& grid, const std::vector<std::int32_t>& rank_of_stage) {
  Sequences sent, received;
  for (const ActionList& list : grid) {
    for (const Action& action : list) {
      if (!is_compute(action.kind)) continue;
      const Message made = message_after(action, rank_of_stage), needed = message_before(action, rank_of_stage);
      if (made.exists()) sent[{made.from, made.to, action.kind == ActionKind::F}].emplace_back(made.send.stage, action.micro_batch);
      if (needed.exists())
        received[{needed.from, needed.to, action.kind == ActionKind::F}].emplace_back(needed.send.stage, action.micro_batch);
    }
  }
  return sent == received;
}

// One stage a rank, the same actions on all of them: a wave for every action, so direct placement cannot make ranks wait in a circle.
bool in_waves(const ActionGrid& grid) {
  return std::all_of(grid.begin(), grid.end(), [&](const ActionList& list) {
    return std::equal(list.begin(), list.end(), grid.front().begin(), grid.front().end(), [&](const Action& a, const Action& b) {
      return a.kind == b.kind && a.micro_batch == b.micro_batch && a.stage == list.front().stage && b.stage == grid.front().front().stage;
    });
  });
}

bool has_messages(const ActionGrid& grid) {
  return std::any_of(grid.begin(), grid.end(), [](const ActionList& list) {
    return std::any_of(list.begin(), list.end(), [](const Action& a) { return is_message(a.kind); });
  });
}

}  // namespace

ActionGrid place_messages(const ActionGrid& grid, P2pMode mode) {
  if (has_messages(grid)) return grid;
  const std::vector<std::int32_t> rank_of_stage = stage_ranks(grid);
  ActionGrid lowered;
  const bool on_compute = mode == P2pMode::Compute || mode == P2pMode::ComputeRecv;
  const bool global = mode == P2pMode::OneLane || (on_compute && !in_waves(grid)) || !same_order_at_both_ends(grid, rank_of_stage);
  if (global && place_messages_globally(grid, lowered)) return lowered;
  return place_directly(grid, rank_of_stage);
}

}  // namespace steptwin
