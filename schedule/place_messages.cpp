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

// 1F1B's way with messages that block: the next forward's input is received before the gradient is sent, as the stage before sends the one
// before it receives the other (specs/bmtrain.md 11).
ActionGrid place_receives_first(const ActionGrid& grid, const std::vector<std::int32_t>& rank_of_stage) {
  ActionGrid out = place_directly(grid, rank_of_stage);
  for (ActionList& list : out)
    for (std::size_t k = 0; k + 1 < list.size(); ++k)
      if (list[k].kind == ActionKind::SendB && list[k + 1].kind == ActionKind::RecvF) std::swap(list[k], list[k + 1]);
  return out;
}

Action counterpart(const Action& message) {
  Action other = message;
  const bool forward = message.kind == ActionKind::SendF || message.kind == ActionKind::RecvF;
  const bool sends = message.kind == ActionKind::SendF || message.kind == ActionKind::SendB;
  other.kind = forward ? (sends ? ActionKind::RecvF : ActionKind::SendF) : (sends ? ActionKind::RecvB : ActionKind::SendB);
  other.stage += forward == sends ? 1 : -1;
  return other;
}

// Whether every list comes to its end when each rank does one action at a time and a message needs both ends.
bool comes_to_its_end(const ActionGrid& grid, const std::vector<std::int32_t>& rank_of_stage) {
  std::vector<std::size_t> next(grid.size());
  const auto stands_at = [&](std::size_t rank, const Action& action) {
    return next[rank] < grid[rank].size() && grid[rank][next[rank]] == action;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < grid.size(); ++rank)
      for (; next[rank] < grid[rank].size(); ++next[rank], moved = true) {
        const Action& action = grid[rank][next[rank]];
        if (!is_message(action.kind)) continue;
        const Action other = counterpart(action);
        const auto peer = static_cast<std::size_t>(rank_of_stage[static_cast<std::size_t>(other.stage)]);
        if (!stands_at(peer, other)) break;
        ++next[peer];
      }
  }
  for (std::size_t rank = 0; rank < grid.size(); ++rank)
    if (next[rank] < grid[rank].size()) return false;
  return true;
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
  const bool blocks = (mode == P2pMode::Compute || mode == P2pMode::ComputeRecv) && !in_waves(grid);
  if (blocks) {
    lowered = place_receives_first(grid, rank_of_stage);
    if (comes_to_its_end(lowered, rank_of_stage)) return lowered;
    lowered.clear();
  }
  const bool global = mode == P2pMode::OneLane || blocks || !same_order_at_both_ends(grid, rank_of_stage);
  if (global && place_messages_globally(grid, lowered)) return lowered;
  return place_directly(grid, rank_of_stage);
}

}  // namespace steptwin
