#include "schedule/orders/actions.h"

#include <fmt/format.h>

#include <algorithm>

namespace steptwin {

const char* name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::F:
      return "F";
    case ActionKind::I:
      return "I";
    case ActionKind::W:
      return "W";
    case ActionKind::B:
      return "B";
    case ActionKind::SendF:
      return "SEND_F";
    case ActionKind::RecvF:
      return "RECV_F";
    case ActionKind::SendB:
      return "SEND_B";
    case ActionKind::RecvB:
      return "RECV_B";
    case ActionKind::Unshard:
      return "UNSHARD";
    case ActionKind::Reshard:
      return "RESHARD";
    case ActionKind::ReduceGrad:
      return "REDUCE_GRAD";
  }
  return "?";
}

std::string to_string(const Action& action) {
  if (!has_micro_batch(action.kind)) return fmt::format("{}{}", action.stage, name_of(action.kind));
  return fmt::format("{}{}{}", action.stage, name_of(action.kind), action.micro_batch);
}

std::vector<std::int32_t> stage_ranks(const ActionGrid& grid) {
  std::vector<std::int32_t> ranks;
  for (std::size_t rank = 0; rank < grid.size(); ++rank) {
    for (const Action& action : grid[rank]) {
      if (!is_compute(action.kind) || action.stage < 0) continue;
      const auto stage = static_cast<std::size_t>(action.stage);
      if (stage >= ranks.size()) ranks.resize(stage + 1, kNoRank);
      if (ranks[stage] == kNoRank) ranks[stage] = static_cast<std::int32_t>(rank);
    }
  }
  return ranks;
}

std::int32_t micro_batch_count(const ActionGrid& grid) {
  std::int32_t count = 0;
  for (const ActionList& list : grid) {
    for (const Action& action : list) count = std::max(count, action.micro_batch + 1);
  }
  return count;
}

Message message_after(const Action& action, const std::vector<std::int32_t>& rank_of_stage) {
  const bool forward = action.kind == ActionKind::F;
  if (!forward && !is_backward(action.kind)) return {};
  const std::int32_t peer_stage = action.stage + (forward ? 1 : -1);
  if (peer_stage < 0 || peer_stage >= static_cast<std::int32_t>(rank_of_stage.size())) return {};
  const std::int32_t from = rank_of_stage[static_cast<std::size_t>(action.stage)];
  const std::int32_t to = rank_of_stage[static_cast<std::size_t>(peer_stage)];
  if (from == to) return {};
  return {from,
          to,
          {forward ? ActionKind::SendF : ActionKind::SendB, action.stage, action.micro_batch},
          {forward ? ActionKind::RecvF : ActionKind::RecvB, peer_stage, action.micro_batch}};
}

Message message_before(const Action& action, const std::vector<std::int32_t>& rank_of_stage) {
  const bool forward = action.kind == ActionKind::F;
  if (!forward && !is_backward(action.kind)) return {};
  const std::int32_t producer = action.stage + (forward ? -1 : 1);
  if (producer < 0 || producer >= static_cast<std::int32_t>(rank_of_stage.size())) return {};
  return message_after({forward ? ActionKind::F : ActionKind::B, producer, action.micro_batch}, rank_of_stage);
}

}  // namespace steptwin
