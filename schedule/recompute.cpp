// The recompute pass on visits.
#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/mechanisms/plan.h"
#include "schedule/sqrt_list.h"
#include "schedule/visits.h"

namespace steptwin {
namespace {

// A layer of a stage by its place among the stage's layers that have a backward: its attention is segment `first + 2 * place`, its MLP the
// next one.
struct StageLayers {
  std::int32_t first = 0, count = 0;
  explicit StageLayers(const StagePlan& stage) {
    for (std::size_t k = 0; k < stage.segments.size(); ++k) {
      if (stage.segments[k].kind != SegmentKind::Mlp || !stage.segments[k].wanted.any()) continue;
      if (count++ == 0) first = static_cast<std::int32_t>(k) - 1;
    }
  }
  std::int32_t place(std::int32_t segment) const { return (segment - first) / 2; }
};

class Recompute {
 public:
  Recompute(const Plan& plan, std::int32_t rank) : plan_(plan), rank_(rank) {
    for (std::size_t chunk = 0; chunk < plan.stages_of_rank[static_cast<std::size_t>(rank)].size(); ++chunk) {
      layers_.emplace_back(plan.stage_at(rank, static_cast<std::int32_t>(chunk)));
      if (plan.scenario->recompute == RecomputeMode::Sqrt) lists_.push_back(sqrt_list(std::max(1, layers_.back().count)));
    }
  }

  Visits insert(const Visits& visits) {
    out_.reserve(visits.size() + visits.size() / 2);
    for (const Visit& visit : visits) {
      const std::size_t before = out_.size();
      if (enters_layer(visit)) forward_again(visit);
      out_.push_back(visit);
      if (out_.size() - before > 1) {
        out_[before].opens = visit.opens;
        out_.back().opens = false;
      }
      mark_slot(out_.back());
    }
    return std::move(out_);
  }

 private:
  const SegmentPlan& segment(const Visit& visit) const {
    return plan_.stage_at(rank_, visit.chunk).segments[static_cast<std::size_t>(visit.segment)];
  }
  bool enters_layer(const Visit& visit) const {
    if (visit.kind != VisitKind::Segment || segment(visit).kind != SegmentKind::Mlp) return false;
    const Phase first = segment(visit).wanted.input ? Phase::InputGrad : Phase::WeightGrad;
    return visit.phase == Phase::Backward || visit.phase == first;
  }
  const StageLayers& layers(const Visit& visit) const { return layers_[static_cast<std::size_t>(visit.chunk)]; }

  void add(const Visit& visit, std::int32_t place, bool hands_on, std::int32_t slot) {
    Visit again = visit;
    again.phase = Phase::Recompute;
    again.opens = again.closes = false;
    again.segment = layers(visit).first + 2 * place;
    if (segment(again).wanted.any()) out_.push_back(again);
    again.segment += 1;
    again.hands_on = hands_on;
    again.slot = slot;
    out_.push_back(again);
  }

  void forward_again(const Visit& visit) {
    const std::int32_t place = layers(visit).place(visit.segment);
    if (plan_.scenario->recompute == RecomputeMode::Sqrt) return sqrt_again(visit, place);
    const bool every = plan_.scenario->recompute == RecomputeMode::Every;
    const auto group = every ? static_cast<std::int32_t>(plan_.scenario->recompute_every) : 1;
    const std::int32_t first = place / group * group, last = std::min(first + group, layers(visit).count) - 1;
    for (std::int32_t k = first; k <= last && place == last; ++k) add(visit, k, k < last, -1);
  }

  // The steps between the backward of the layer behind and this one's.
  void sqrt_again(const Visit& visit, std::int32_t place) {
    const std::vector<SqrtStep> steps = sqrt_backward(lists_[static_cast<std::size_t>(visit.chunk)]);
    const auto own = std::find(steps.begin(), steps.end(), SqrtStep{place, -1});
    auto first = own;
    while (first != steps.begin() && std::prev(first)->into_slot >= 0) --first;
    for (auto step = first; step != own; ++step) add(visit, step->layer, false, step->into_slot);
    add(visit, place, false, -1);
  }

  void mark_slot(Visit& visit) const {
    if (lists_.empty() || visit.kind != VisitKind::Segment || visit.phase != Phase::Forward) return;
    if (segment(visit).kind != SegmentKind::Attention || visit.segment < layers(visit).first) return;
    const std::int32_t place = layers(visit).place(visit.segment);
    const SqrtEntry& entry = lists_[static_cast<std::size_t>(visit.chunk)][static_cast<std::size_t>(place)];
    if (entry.restart == place) visit.slot = entry.slot;
  }

  const Plan& plan_;
  std::int32_t rank_;
  std::vector<StageLayers> layers_;            // [chunk]
  std::vector<std::vector<SqrtEntry>> lists_;  // [chunk]; empty: not the sqrt list
  Visits out_;
};

}  // namespace

Visits recompute_layers(const Plan& plan, std::int32_t rank, const Visits& visits) { return Recompute(plan, rank).insert(visits); }

}  // namespace steptwin
