#include "schedule/mechanisms/tensors.h"

#include <fmt/format.h>

namespace steptwin {
namespace {

// Tensors one behind the other without gaps: bytes per parameter are exact.
Layout packed_layout(const SegmentPlan& segment, DType dtype) {
  Layout layout{fmt::format("{}.{}", segment.name, name_of(dtype)), {}};
  Bytes offset;
  for (const Parameter& parameter : segment.parameters) {
    layout.tensors.push_back({parameter.name, dtype, parameter.shape, offset});
    offset += layout.tensors.back().bytes();
  }
  return layout;
}

Layout single(const char* name, DType dtype, std::vector<std::int64_t> shape) {
  return {name, {{name, dtype, std::move(shape), Bytes(0)}}};
}

SegmentHome make_home(const Plan& plan, const SegmentPlan& segment, Emitter& emit) {
  SegmentHome home;
  if (segment.elements == 0 || plan.sharded(segment.kind)) return home;
  StoredGroup group;
  group.elements = segment.elements;
  const Scenario& scenario = *plan.scenario;
  const auto make = [&](const char* what, Category category, DType dtype, Space space) {
    const LayoutId layout = emit.builder().layout(packed_layout(segment, dtype));
    return state_buffer(plan, {fmt::format("{}.{}", segment.name, what), category, Bytes(segment.elements * size_of(dtype)), layout, space}, emit);
  };
  group.param = make("param", Category::Param, scenario.compute, Space::Device);
  group.gradient = make("grad", Category::Gradient, scenario.gradient, Space::Device);
  make_optimizer_state(plan, group, make);
  home.param = {group.param};
  home.gradient = {group.gradient};
  home.groups = {group};
  return home;
}

}  // namespace

BufferId state_buffer(const Plan& plan, const StateBuffer& state, Emitter& emit) {
  const BufferId buffer = emit.resident(state.name, state.category, state.bytes, state.layout, state.space);
  const bool parameter = state.category == Category::Param && state.space == Space::Device;
  if (plan.scenario->lazy_state && !parameter) emit.builder().make_lazy(buffer);
  return buffer;
}

void make_optimizer_state(const Plan& plan, StoredGroup& group, const std::function<BufferId(const char*, Category, DType, Space)>& make) {
  const Scenario& scenario = *plan.scenario;
  if (scenario.optimizer == OptimizerKind::None) return;
  const Space states = scenario.offload ? Space::Pageable : Space::Device;
  if (plan.master_copy()) group.master = make("master", Category::Optimizer, scenario.master, states);
  group.first_moment = make("m", Category::Optimizer, DType::Fp32, states);
  group.second_moment = make("v", Category::Optimizer, DType::Fp32, states);
  if (!scenario.offload) return;
  group.host_gradient = make("host_grad", Category::Gradient, scenario.gradient, Space::Pinned);
  group.host_param = make("host_param", Category::Param, scenario.compute, Space::Pinned);
}

SharedIds make_shared_ids(const Plan& plan, ScheduleBuilder& builder) {
  SharedIds ids;
  const Scenario& scenario = *plan.scenario;
  for (std::size_t kind = 0; kind < ids.saved.size(); ++kind) {
    const SegmentCost& cost = plan.costs[kind];
    ids.segment[kind] = builder.name(segment_name(static_cast<SegmentKind>(kind)));
    if (cost.saved_bytes.value > 0) ids.saved[kind] = builder.layout(cost.saved);
    const auto set = [&](Phase phase, Work work) { ids.work[kind][static_cast<std::size_t>(phase)] = builder.work(std::move(work)); };
    set(Phase::Forward, cost.forward);
    set(Phase::Recompute, cost.forward);
    set(Phase::Backward, join(cost.input_grad, cost.weight_grad));
    set(Phase::InputGrad, cost.input_grad);
    set(Phase::WeightGrad, cost.weight_grad);
  }
  ids.adam = builder.name("adam");
  ids.data_parallel = builder.name("dp");
  ids.tied = builder.name("tied");
  if (scenario.zero.level > 0) ids.fill = builder.name("fill"), ids.accumulate = builder.name("accumulate");
  if (scenario.offload) ids.down = builder.name("down"), ids.up = builder.name("up");
  const BatchShape& batch = scenario.batch;
  for (std::size_t kind = 0; kind < ids.hidden.size(); ++kind) {
    const std::int64_t samples = is_end(static_cast<SegmentKind>(kind)) ? batch.micro_batch : layer_batch(scenario).micro_batch;
    ids.hidden[kind] = builder.layout(single("hidden", scenario.compute, {samples, batch.sequence, scenario.model.hidden}));
  }
  ids.ids = builder.layout(single("ids", DType::Int64, {scenario.micro_batches, batch.micro_batch, batch.sequence}));
  ids.loss = builder.layout(single("loss", DType::Fp32, {1}));
  if (scenario.model.dropout > 0) builder.constant("dropout", scenario.model.dropout);
  if (scenario.model.dropout > 0 && plan.recompute()) ids.random = builder.layout(single("random", DType::Int64, {2}));
  if (scenario.loss_scaling.initial > 0) ids.loss_scale = builder.layout({"loss_scale", {{"optimizer", DType::Fp32, {3}, {}}}});
  return ids;
}

Tensors make_tensors(const Plan& plan, std::int32_t rank, const SharedIds& ids, Emitter& emit) {
  Tensors tensors;
  const Scenario& scenario = *plan.scenario;
  const Bytes id_bytes(scenario.micro_batches * scenario.batch.micro_batch * scenario.batch.sequence * size_of(DType::Int64));
  if (ids.loss_scale.valid())
    tensors.loss_scale = emit.resident("optimizer.loss_scale", Category::Optimizer, Bytes(3 * size_of(DType::Fp32)), ids.loss_scale);
  for (const std::int32_t number : plan.stages_of_rank[static_cast<std::size_t>(rank)]) {
    const StagePlan& stage = plan.stages[static_cast<std::size_t>(number)];
    if (stage.stage == 0 || plan.ends_everywhere()) tensors.tokens = emit.resident("tokens", Category::Input, id_bytes, ids.ids);
    if (plan.last_stage(stage) || plan.ends_everywhere()) tensors.targets = emit.resident("targets", Category::Input, id_bytes, ids.ids);
    auto& homes = tensors.homes.emplace_back();
    for (const SegmentPlan& segment : stage.segments) homes.push_back(make_home(plan, segment, emit));
    tensors.chunks.emplace_back(stage.segments.size(), static_cast<std::size_t>(layer_micro_batches(scenario)));
  }
  return tensors;
}

}  // namespace steptwin
