// The program under construction: what mechanisms are given beside the visits.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/mechanisms/emitter.h"
#include "schedule/mechanisms/plan.h"
#include "schedule/mechanisms/tensors.h"
#include "schedule/visits.h"

namespace steptwin {

struct ProgramContext {
  const Plan& plan;
  const SharedIds& ids;
  Emitter& emit;
  std::int32_t rank = 0;  // pipeline coordinate
  LaneId compute;
  Tensors tensors;
  OpId last_compute;             // the last op of a Segment visit
  std::vector<Access> operands;  // scratch of emit_segment(): one allocation for millions of ops

  const StagePlan& stage(std::int32_t chunk) const { return plan.stage_at(rank, chunk); }
  const SegmentPlan& segment(const Visit& visit) const { return stage(visit.chunk).segments[static_cast<std::size_t>(visit.segment)]; }
  SegmentHome& home(std::int32_t chunk, std::int32_t segment_index) {
    const SegmentPlan& plan_of = stage(chunk).segments[static_cast<std::size_t>(segment_index)];
    return tensors.homes[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(plan_of.home)];
  }
  ChunkTensors& chunk(std::int32_t number) { return tensors.chunks[static_cast<std::size_t>(number)]; }
};

}  // namespace steptwin
