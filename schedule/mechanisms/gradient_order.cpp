#include "schedule/mechanisms/gradient_order.h"

#include <algorithm>

namespace steptwin {

std::vector<GradientEnd> gradient_order(const Plan& plan, std::int32_t rank, const Visits& visits) {
  const auto& stages = plan.stages_of_rank[static_cast<std::size_t>(rank)];
  std::vector<std::vector<std::size_t>> last(stages.size());
  for (std::size_t chunk = 0; chunk < stages.size(); ++chunk)
    last[chunk].resize(plan.stage_at(rank, static_cast<std::int32_t>(chunk)).segments.size());
  for (std::size_t i = 0; i < visits.size(); ++i) {
    const Visit& visit = visits[i];
    if (visit.kind != VisitKind::Segment || (visit.phase != Phase::Backward && visit.phase != Phase::WeightGrad)) continue;
    const SegmentPlan& segment = plan.stage_at(rank, visit.chunk).segments[static_cast<std::size_t>(visit.segment)];
    last[static_cast<std::size_t>(visit.chunk)][static_cast<std::size_t>(segment.home)] = i;
    const bool head = segment.kind == SegmentKind::Head;
    if (head && plan.tying == Tying::Local && plan.table_trained)
      last[0][0] = i;  // the head adds to the table's gradient in the embedding's buffer
  }
  std::vector<GradientEnd> order;
  for (std::size_t chunk = 0; chunk < last.size(); ++chunk) {
    const StagePlan& stage = plan.stage_at(rank, static_cast<std::int32_t>(chunk));
    for (std::size_t segment = 0; segment < last[chunk].size(); ++segment) {
      if (stage.segments[segment].trained > 0)
        order.push_back({static_cast<std::int32_t>(chunk), static_cast<std::int32_t>(segment), last[chunk][segment]});
    }
  }
  std::stable_sort(order.begin(), order.end(), [](const GradientEnd& a, const GradientEnd& b) { return a.visit < b.visit; });
  return order;
}

}  // namespace steptwin
