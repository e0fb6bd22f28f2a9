// The plan of the whole pipeline, built once before any op: which rank holds which stage, which segments a stage has, and what
// they cost. Read-only for every mechanism.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/model/model.h"
#include "schedule/orders/orders.h"
#include "schedule/scenario.h"

namespace steptwin {

struct SegmentPlan {
  SegmentKind kind = SegmentKind::Attention;
  std::int32_t layer = -1;            // -1 for the embedding and the head
  std::string name;                   // "embed", "layers.3.attn", "head"
  std::vector<Parameter> parameters;  // of this rank; a head that shares the embedding's table on its rank lists no copy
  std::int64_t elements = 0;
};

struct StagePlan {
  std::int32_t stage = 0, rank = 0, chunk = 0;
  std::vector<SegmentPlan> segments;  // never empty
};

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
  std::array<SegmentCost, 4> costs;                       // [SegmentKind]
  Tying tying = Tying::None;
  std::uint32_t table_tensor = 0;       // of the table in the embedding's parameters (tied)
  std::uint32_t head_table_tensor = 0;  // of the copy in the head's parameters (Remote)
  std::int64_t data_parallel = 1;

  std::int32_t ranks() const { return static_cast<std::int32_t>(stages_of_rank.size()); }
  const StagePlan& stage_at(std::int32_t rank, std::int32_t chunk) const {
    return stages[static_cast<std::size_t>(stages_of_rank[static_cast<std::size_t>(rank)][static_cast<std::size_t>(chunk)])];
  }
  const SegmentCost& cost(SegmentKind kind) const { return costs[static_cast<std::size_t>(kind)]; }
  bool recompute() const { return scenario->recompute != RecomputeMode::None; }
  bool last_stage(const StagePlan& stage) const { return stage.stage + 1 == static_cast<std::int32_t>(stages.size()); }
  // Under ZeRO the parameters of a layer form one unit (a block); the embedding and the head are stand-alone parameters.
  bool sharded(SegmentKind kind) const {
    const bool block = kind == SegmentKind::Attention || kind == SegmentKind::Mlp;
    return scenario->zero.level > 0 && (block || scenario->zero.ends == ZeroEnds::Sharded);
  }
  std::int64_t shard_ranks() const { return scenario->zero.shard_ranks > 0 ? scenario->zero.shard_ranks : data_parallel; }
  bool master_copy() const { return scenario->optimizer == OptimizerKind::Adam && scenario->master != scenario->compute; }
};

// The grid passes check_actions(); layers has one entry per stage. Throws InputError for a stage without work.
Plan make_plan(const Scenario& scenario, ActionGrid grid, const std::vector<std::int64_t>& layers);

}  // namespace steptwin
