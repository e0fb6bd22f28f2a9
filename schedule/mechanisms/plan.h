// The plan of the whole pipeline, built once before any op: which rank holds which stage, which segments a stage has, and what
// they cost. Read-only for every mechanism.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/batching.h"
#include "schedule/ir/op.h"
#include "schedule/model/model.h"
#include "schedule/orders/orders.h"
#include "schedule/scenario.h"

namespace steptwin {

struct SegmentPlan {
  SegmentKind kind = SegmentKind::Attention;
  std::int32_t layer = -1;            // -1 for the embedding and the head
  std::string name;                   // "embed", "layers.3.attn", "head"
  // Of this rank: a head that shares the embedding's table on its rank lists no copy, a layer that shares its block's parameters none.
  std::vector<Parameter> parameters;
  std::int32_t home = 0;              // the segment of its stage whose parameters it uses: itself, or that of its block's first layer
  std::int64_t elements = 0, trained = 0;  // of all of them, and of those that are not frozen
  WantedGradients wanted;                  // of its backward
  std::size_t variant = 0;                 // of the plan's

  bool has(Phase phase) const {  // an op of this phase
    if (phase == Phase::Backward) return wanted.any();
    if (phase == Phase::InputGrad) return wanted.input;
    return phase != Phase::WeightGrad || wanted.parameters;
  }
};

// Segments of one kind of which the same gradients are wanted.
struct SegmentVariant {
  SegmentKind kind = SegmentKind::Attention;
  WantedGradients wanted;
  SegmentCost cost;  // of the micro-batch that the kind sees
};

struct StagePlan {
  std::int32_t stage = 0, rank = 0, chunk = 0;
  std::vector<SegmentPlan> segments;  // never empty
  std::size_t in = 0, out = 0;        // segments [in, out) are pipelined: messages come in at boundary `in` and leave at boundary `out`
};

// Embedding and head, as opposed to the halves of a layer.
inline bool is_end(SegmentKind kind) { return kind == SegmentKind::Embedding || kind == SegmentKind::Head; }

// Where the two uses of a tied embedding table live.
enum class Tying : std::uint8_t {
  None,
  Local,   // first and last stage on one rank: one table, one gradient buffer for both uses
  Remote,  // on two ranks: the last stage holds a copy; gradients are summed over both before the optimizer
};

struct Plan {
  const Scenario* scenario = nullptr;
  ActionGrid grid;  // with messages
  std::vector<StagePlan> stages;
  std::vector<std::vector<std::int32_t>> stages_of_rank;  // [pipeline rank][chunk]
  std::vector<SegmentVariant> variants;                   // by kind
  Tying tying = Tying::None;
  bool table_trained = false;           // tied: the table, for both its uses
  std::int32_t pieces = 1;              // form bmtrain: micro-batches of the layers that are one batch of embedding and head

  std::int32_t ranks() const { return static_cast<std::int32_t>(stages_of_rank.size()); }
  const StagePlan& stage_at(std::int32_t rank, std::int32_t chunk) const {
    return stages[static_cast<std::size_t>(stages_of_rank[static_cast<std::size_t>(rank)][static_cast<std::size_t>(chunk)])];
  }
  const SegmentCost& cost(const SegmentPlan& segment) const { return variants[segment.variant].cost; }
  bool recompute() const { return scenario->recompute != RecomputeMode::None; }
  bool ends_everywhere() const { return batch_on_every_rank(*scenario); }
  // Micro-batches are numbered as the layers see them; embedding and head see batches.
  std::int32_t batch_of(std::int32_t micro_batch) const { return micro_batch / pieces; }
  std::int32_t shown_micro_batch(SegmentKind kind, std::int32_t micro_batch) const {
    return is_end(kind) ? batch_of(micro_batch) : micro_batch;
  }
  // The hidden state at the boundaries of a kind.
  BatchShape batch_shape(SegmentKind kind) const { return is_end(kind) ? scenario->batch : layer_batch(*scenario); }
  Bytes hidden_bytes(SegmentKind kind) const {
    const BatchShape batch = batch_shape(kind);
    return Bytes(batch.micro_batch * batch.sequence * scenario->model.hidden * size_of(scenario->compute));
  }
  bool last_stage(const StagePlan& stage) const { return stage.stage + 1 == static_cast<std::int32_t>(stages.size()); }
  // Whether the gradient of what comes into a stage's layers is computed, and sent to where it came from.
  bool hands_down(const StagePlan& stage) const { return stage.segments[stage.in].wanted.input; }
  // Under ZeRO the parameters of a layer form one unit (a block); the embedding and the head are stand-alone parameters.
  bool sharded(SegmentKind kind) const { return scenario->zero.level > 0 && (!is_end(kind) || scenario->zero.ends == ZeroEnds::Sharded); }
  // The ranks that hold the same parameters of a kind, as axes and counted.
  std::vector<std::string> replica_axes(SegmentKind kind) const {
    return is_end(kind) && ends_everywhere() ? std::vector<std::string>{"pp", "dp"} : std::vector<std::string>{"dp"};
  }
  std::int64_t replicas(SegmentKind kind) const { return is_end(kind) ? batch_ranks(*scenario) : axis_size(scenario->mesh, "dp"); }
  std::int64_t shard_ranks(SegmentKind kind) const { return scenario->zero.shard_ranks > 0 ? scenario->zero.shard_ranks : replicas(kind); }
  bool master_copy() const { return scenario->optimizer == OptimizerKind::Adam && scenario->master != scenario->compute; }
};

// The grid passes check_actions(); layers has one entry per stage. Throws InputError for a stage without work.
Plan make_plan(const Scenario& scenario, ActionGrid grid, const std::vector<std::int64_t>& layers);

}  // namespace steptwin
