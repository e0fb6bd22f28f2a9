#include "schedule/mechanisms/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/orders/actions.h"

namespace steptwin {
namespace {

SegmentPlan make_segment(SegmentKind kind, std::int64_t layer, std::vector<Parameter> parameters) {
  SegmentPlan segment;
  segment.kind = kind;
  segment.layer = static_cast<std::int32_t>(layer);
  segment.name = segment_name(kind);
  segment.parameters = std::move(parameters);
  if (layer >= 0) segment.name = fmt::format("layers.{}.{}", layer, segment.name);
  for (const Parameter& parameter : segment.parameters) {
    segment.elements += parameter.elements();
    if (!parameter.frozen) segment.trained += parameter.elements();
  }
  return segment;
}

SegmentPlan head_segment(const ModelShape& model, Tying tying) {
  std::vector<Parameter> parameters = head_parameters(model);
  if (tying == Tying::Local) std::erase_if(parameters, [](const Parameter& p) { return p.tied; });
  return make_segment(SegmentKind::Head, -1, std::move(parameters));
}

std::vector<SegmentPlan> stage_segments(const Plan& plan, std::size_t stage, std::int64_t first_layer, std::int64_t layers) {
  const ModelShape& model = plan.scenario->model;
  std::vector<SegmentPlan> segments;
  if (stage == 0 || plan.ends_everywhere()) segments.push_back(make_segment(SegmentKind::Embedding, -1, embedding_parameters(model)));
  for (std::int64_t layer = first_layer; layer < first_layer + layers; ++layer) {
    const bool first = model.first_of_block(layer) == layer;
    segments.push_back(make_segment(SegmentKind::Attention, layer, first ? attention_parameters(model, layer) : std::vector<Parameter>()));
    segments.push_back(make_segment(SegmentKind::Mlp, layer, first ? mlp_parameters(model, layer) : std::vector<Parameter>()));
  }
  if (stage + 1 == plan.stages.size() || plan.ends_everywhere()) segments.push_back(head_segment(model, plan.tying));
  for (std::size_t k = 0; k < segments.size(); ++k) {
    const std::int64_t layer = segments[k].layer, shared = layer < 0 ? 0 : layer - model.first_of_block(layer);
    segments[k].home = static_cast<std::int32_t>(k) - 2 * static_cast<std::int32_t>(shared);
  }
  if (!segments.empty()) return segments;
  Diagnostic problem;
  problem.code = "PARTITION";
  problem.text = fmt::format("stage {} of {} has no layer, no embedding and no head", stage, plan.stages.size());
  problem.help = "use fewer pipeline stages, or give it a layer";
  problem.place.file = plan.scenario->file;
  throw InputError(problem);
}

void plan_tying(Plan& plan, const std::vector<std::int32_t>& rank_of_stage) {
  if (!plan.scenario->model.tied) return;
  plan.tying = plan.ends_everywhere() || rank_of_stage.front() == rank_of_stage.back() ? Tying::Local : Tying::Remote;
  plan.table_trained = !embedding_parameters(plan.scenario->model).front().frozen;
}

// Variants in the order of kinds, of a kind in the order of the network.
void plan_gradients(Plan& plan) {
  const Scenario& scenario = *plan.scenario;
  const std::vector<WantedGradients> wanted = wanted_gradients(scenario.model);
  for (const SegmentKind kind : {SegmentKind::Embedding, SegmentKind::Attention, SegmentKind::Mlp, SegmentKind::Head}) {
    for (StagePlan& stage : plan.stages)
      for (SegmentPlan& segment : stage.segments) {
        if (segment.kind != kind) continue;
        segment.wanted = wanted[segment_place(scenario.model, kind, segment.layer)];
        const auto same = std::find_if(plan.variants.begin(), plan.variants.end(),
                                       [&](const SegmentVariant& v) { return v.kind == kind && v.wanted == segment.wanted; });
        segment.variant = static_cast<std::size_t>(same - plan.variants.begin());
        if (same != plan.variants.end()) continue;
        plan.variants.push_back(
            {kind, segment.wanted,
             segment_cost(scenario.model, kind, plan.batch_shape(kind), scenario.compute, scenario.gradient, segment.wanted)});
      }
  }
}

}  // namespace

Plan make_plan(const Scenario& scenario, ActionGrid grid, const std::vector<std::int64_t>& layers) {
  Plan plan;
  plan.scenario = &scenario;
  const std::vector<std::int32_t> rank_of_stage = stage_ranks(grid);
  plan.stages_of_rank.resize(grid.size());
  plan.stages.resize(rank_of_stage.size());
  plan.grid = std::move(grid);
  plan_tying(plan, rank_of_stage);
  plan.pieces = static_cast<std::int32_t>(pieces_of_batch(scenario));
  std::int64_t first_layer = 0;
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    auto& own = plan.stages_of_rank[static_cast<std::size_t>(rank_of_stage[stage])];
    plan.stages[stage] = {static_cast<std::int32_t>(stage),
                          rank_of_stage[stage],
                          static_cast<std::int32_t>(own.size()),
                          stage_segments(plan, stage, first_layer, layers[stage]),
                          0,
                          0};
    const std::size_t ends = plan.ends_everywhere() ? 1 : 0;
    plan.stages[stage].in = ends;
    plan.stages[stage].out = plan.stages[stage].segments.size() - ends;
    own.push_back(static_cast<std::int32_t>(stage));
    first_layer += layers[stage];
  }
  plan_gradients(plan);
  return plan;
}

}  // namespace steptwin
