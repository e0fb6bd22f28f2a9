// Visits: the flat list of what one pipeline rank does, in issue order. Actions become visits of segments and messages; passes
// on visits (recompute) insert more; mechanisms then weave ops around them (mechanisms/mechanism.h).
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/ir/op.h"
#include "schedule/orders/orders.h"

namespace steptwin {

struct Plan;

enum class VisitKind : std::uint8_t {
  Segment,        // one segment does `phase` for one micro-batch
  Message,        // a SEND or RECV of the pipeline
  GradientsDone,  // once, behind the last backward: every gradient has its last local contribution
  Update,         // the optimizer step of one segment
};

struct Visit {
  VisitKind kind = VisitKind::Segment;
  Phase phase = Phase::None;               // Segment: F, R, B, I or W; Update: U
  ActionKind message = ActionKind::SendF;  // Message only
  std::int32_t chunk = -1;
  std::int32_t segment = -1;  // index into the stage's segments; -1 for messages
  std::int32_t micro_batch = -1;
  bool opens = false, closes = false;  // first and last segment visit of its action
  bool hands_on = false;               // R of an MLP: the next layer's R reads its output
  std::int32_t slot = -1;              // >= 0: a checkpoint slot; F of an attention: its input, R of an MLP: where its output is copied
  bool operator==(const Visit&) const = default;
};
using Visits = std::vector<Visit>;

// The visits of one pipeline rank: every compute action as its segments (F ascending, B and I and W descending, as far as gradients are
// wanted of them; the lowest trained segment, the embedding for one, has no I), messages where the plan's lists have them and what they
// carry is computed, then GradientsDone and, with an optimizer, one Update per segment that has trained parameters: in the order in which
// their gradients become final, a tied table that waits for another stage last. In form bmtrain the actions are those of the layers;
// embedding, head and the head's backward stand around those of a batch. UNSHARD, RESHARD and REDUCE_GRAD do nothing today: parameters are
// not sharded, gradients are reduced by data_parallel.cpp.
Visits make_visits(const Plan& plan, std::int32_t rank);
// Where what all ranks do before their optimizers stands: at the first Update, at GradientsDone where everything is frozen. Without an
// optimizer behind the last visit.
std::size_t before_updates(const Plan& plan, const Visits& visits);

// Inserts the re-forward visits (phase R) of the scenario's recompute mode; the embedding and the head are not recomputed.
// Only layers with a backward are; groups and lists are counted from the first of them in their stage, and an attention without a backward
// is left out.
//   full   before the backward (B or I) of a layer, its attention and MLP run forward again.
//   every  n layers of a stage in a row are a group that keeps its first input alone; before its last layer's
//          backward all of it runs forward again.
//   sqrt   BMTrain's list (sqrt_list.h) of each stage's layers: as full, and where the input of a layer is missing, forward again
//          from a layer that has one, each output copied into its slot.
Visits recompute_layers(const Plan& plan, std::int32_t rank, const Visits& visits);

}  // namespace steptwin
