#include "schedule/mechanisms/zero_storage.h"

#include <fmt/format.h>

#include <algorithm>

namespace steptwin {
namespace {

Layout layout_of(const FlatGroup& group, const std::string& name, DType dtype) {
  Layout layout{fmt::format("{}.{}", name, name_of(dtype)), {}};
  for (std::size_t i = 0; i < group.parameters.size(); ++i)
    layout.tensors.push_back({group.parameters[i].name, dtype, group.parameters[i].shape, Bytes(group.offsets[i] * size_of(dtype))});
  return layout;
}

// Whether a rank keeps all of a group's parameters, or its share alone.
enum class Kept : std::uint8_t { Whole, Share };

// Makes the resident buffers of one group.
class GroupMaker {
 public:
  GroupMaker(ProgramContext& program, CommId comm, const FlatGroup& group, std::string name, std::int64_t ranks)
      : program_(program), comm_(comm), group_(group), name_(std::move(name)), cut_(sharding_of(group, ranks)) {}

  ZeroGroup make(Kept kept) {
    const Scenario& scenario = *program_.plan.scenario;
    ZeroGroup made;
    made.cut = cut_;
    made.param_layout = layout(scenario.compute);
    made.gradient_layout = layout(scenario.gradient);
    StoredGroup& stored = made.stored;
    stored.elements = cut_.partition;
    stored.parameters = group_.parameters;
    const Part own{Part::Kind::Shard, comm_.value, 0};
    if (kept == Kept::Share) {
      stored.param = shard("param", Category::Param, scenario.compute, Space::Device);
    } else {
      stored.param = whole("param", Category::Param, scenario.compute);
      stored.param_part = own;
    }
    if (!group_.requires_grad) return made;
    if (scenario.zero.level >= 2) {
      stored.gradient = shard("grad", Category::GradientShard, scenario.gradient, Space::Device);
    } else {
      stored.gradient = whole("grad", Category::Gradient, scenario.gradient);
      stored.gradient_part = own;
    }
    make_optimizer_state(program_.plan, stored, [this](const char* what, Category category, DType dtype, Space space) {
      return shard(what, category, dtype, space);
    });
    return made;
  }

 private:
  LayoutId layout(DType dtype) { return program_.emit.builder().layout(layout_of(group_, name_, dtype)); }
  BufferId whole(const char* what, Category category, DType dtype) {
    const std::int64_t elements = group_.requires_grad ? cut_.gathered : group_.total;  // nothing is gathered into what is never stepped
    const Bytes bytes(elements * size_of(dtype));
    return state_buffer(program_.plan, {fmt::format("{}.{}", name_, what), category, bytes, layout(dtype)}, program_.emit);
  }
  BufferId shard(const char* what, Category category, DType dtype, Space space) {
    const Bytes bytes(cut_.partition * size_of(dtype));
    const BufferId buffer = state_buffer(program_.plan, {fmt::format("{}.{}", name_, what), category, bytes, layout(dtype), space}, program_.emit);
    program_.emit.builder().shard_buffer(buffer, comm_);
    return buffer;
  }

  ProgramContext& program_;
  CommId comm_;
  const FlatGroup& group_;
  std::string name_;
  Sharding cut_;
};

Kept kept_by_level(const ProgramContext& program) { return program.plan.scenario->zero.level == 3 ? Kept::Share : Kept::Whole; }

void add_stand_alone(ZeroUnit& unit, const SegmentPlan& segment, ProgramContext& program, CommId comm) {
  const std::int64_t ranks = program.plan.shard_ranks(segment.kind);
  for (const StoredParameter& parameter : stored_parameters(segment, program.plan.scenario->compute))
    unit.groups.push_back(GroupMaker(program, comm, stand_alone_group(parameter), parameter.name, ranks).make(kept_by_level(program)));
}

void add_block(ZeroUnit& unit, const StagePlan& stage, ProgramContext& program, CommId comm) {
  std::vector<StoredParameter> parameters;
  for (std::int32_t k = 0; k < unit.segments; ++k) {
    const SegmentPlan& segment = stage.segments[static_cast<std::size_t>(unit.first_segment + k)];
    const std::vector<StoredParameter> own = stored_parameters(segment, program.plan.scenario->compute);
    parameters.insert(parameters.end(), own.begin(), own.end());
  }
  const std::vector<FlatGroup> groups = flat_groups(parameters);
  for (const FlatGroup& group : groups) {
    const std::string name = group_name(fmt::format("layers.{}", unit.layer), group, groups.size());
    GroupMaker maker(program, comm, group, name, program.plan.shard_ranks(SegmentKind::Attention));
    unit.groups.push_back(maker.make(kept_by_level(program)));
  }
}

// Which segments its groups belong to, and which of them are trained; these go into the home they are stepped with.
void note_segments(ZeroUnit& unit, const StagePlan& stage, ProgramContext& program) {
  for (std::int32_t k = unit.segments; k-- > 0;) {
    const SegmentPlan& segment = stage.segments[static_cast<std::size_t>(unit.first_segment + k)];
    if (segment.trained > 0) unit.stepped_with = unit.first_segment + k;
    for (ZeroGroup& group : unit.groups)
      group.of_segment[static_cast<std::size_t>(k)] =
          std::any_of(group.stored.parameters.begin(), group.stored.parameters.end(),
                      [&](const StoredParameter& parameter) { return parameter.name.starts_with(segment.name + "."); });
  }
  for (const ZeroGroup& group : unit.groups) {
    if (!group.stored.gradient.valid()) continue;
    unit.trained.push_back(group);
    program.home(unit.chunk, unit.stepped_with).groups.push_back(group.stored);
  }
}

ZeroUnit make_unit(const StagePlan& stage, std::int32_t segment, ProgramContext& program, const ZeroComms& comms) {
  const SegmentPlan& first = stage.segments[static_cast<std::size_t>(segment)];
  ZeroUnit unit{stage.chunk, segment, first.layer >= 0 ? 2 : 1, first.layer, {}, {}, -1};
  if (unit.stand_alone())
    add_stand_alone(unit, first, program, comms.ends);
  else
    add_block(unit, stage, program, comms.blocks);
  note_segments(unit, stage, program);
  return unit;
}

ZeroUnit make_parameter_unit(const StagePlan& stage, std::int32_t segment, ProgramContext& program, CommId comm, std::int64_t threshold) {
  const SegmentPlan& plan = stage.segments[static_cast<std::size_t>(segment)];
  ZeroUnit unit{stage.chunk, segment, 1, plan.layer, {}, {}, -1};
  for (const StoredParameter& parameter : stored_parameters(plan, program.plan.scenario->compute)) {
    const Kept kept = parameter.elements() <= threshold ? Kept::Whole : Kept::Share;
    unit.groups.push_back(
        GroupMaker(program, comm, stand_alone_group(parameter), parameter.name, program.plan.shard_ranks(plan.kind)).make(kept));
  }
  note_segments(unit, stage, program);
  return unit;
}

}  // namespace

std::vector<std::vector<std::uint32_t>> shard_groups(std::uint32_t ranks, std::uint32_t size) {
  std::vector<std::vector<std::uint32_t>> groups;
  for (std::uint32_t first = 0; first < ranks && size < ranks; first += size) {
    groups.emplace_back();
    for (std::uint32_t k = 0; k < size; ++k) groups.back().push_back(first + k);
  }
  return groups;
}

std::vector<ZeroUnit> make_parameter_units(ProgramContext& program, CommId comm, std::int64_t threshold) {
  std::vector<ZeroUnit> units;
  for (std::size_t chunk = 0; chunk < program.tensors.chunks.size(); ++chunk) {
    const StagePlan& stage = program.stage(static_cast<std::int32_t>(chunk));
    for (std::int32_t segment = 0; segment < static_cast<std::int32_t>(stage.segments.size()); ++segment)
      units.push_back(make_parameter_unit(stage, segment, program, comm, threshold));
  }
  return units;
}

std::vector<ZeroUnit> make_zero_units(ProgramContext& program, const ZeroComms& comms) {
  std::vector<ZeroUnit> units;
  for (std::size_t chunk = 0; chunk < program.tensors.chunks.size(); ++chunk) {
    const StagePlan& stage = program.stage(static_cast<std::int32_t>(chunk));
    for (std::int32_t segment = 0; segment < static_cast<std::int32_t>(stage.segments.size());) {
      const SegmentPlan& plan = stage.segments[static_cast<std::size_t>(segment)];
      if (program.plan.sharded(plan.kind) && plan.elements > 0) units.push_back(make_unit(stage, segment, program, comms));
      segment += plan.layer >= 0 ? 2 : 1;
    }
  }
  return units;
}

}  // namespace steptwin
