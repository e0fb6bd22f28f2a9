// What the passes over action lists share: how actions are written, and which rank holds which stage.
#pragma once

#include <string_view>
#include <vector>

#include "schedule/orders/orders.h"

namespace steptwin {

const char* name_of(ActionKind kind);  // "F", "SEND_F", "REDUCE_GRAD"
constexpr bool is_compute(ActionKind kind) { return kind <= ActionKind::B; }
constexpr bool is_message(ActionKind kind) { return kind >= ActionKind::SendF && kind <= ActionKind::RecvB; }
constexpr bool has_micro_batch(ActionKind kind) { return kind <= ActionKind::RecvB; }
constexpr bool is_backward(ActionKind kind) { return kind == ActionKind::I || kind == ActionKind::B; }  // hands on the input gradient

// The rank of every stage that has a compute action; the size is the largest such stage + 1, kNoRank marks gaps.
// A stage on several ranks gets the first of them.
inline constexpr std::int32_t kNoRank = -1;
std::vector<std::int32_t> stage_ranks(const ActionGrid& grid);
// Largest micro-batch + 1 over all actions; 0 for an empty grid.
std::int32_t micro_batch_count(const ActionGrid& grid);

// A message of the pipeline between two ranks: what the compute action (kind F, I or B) at `stage` hands on.
// forward: stage -> stage+1; else the input gradient stage -> stage-1. Absent when both stages are on one rank or there is no neighbour.
struct Message {
  std::int32_t from = kNoRank, to = kNoRank;
  Action send, recv;
  bool exists() const { return to != kNoRank; }
};
Message message_after(const Action& action, const std::vector<std::int32_t>& rank_of_stage);
// What the compute action needs from another rank before it can run; its `recv` is posted by the action's own rank.
Message message_before(const Action& action, const std::vector<std::int32_t>& rank_of_stage);

}  // namespace steptwin
