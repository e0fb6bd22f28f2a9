#include "schedule/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "schedule/base/error.h"
#include "schedule/mechanisms/zero_storage.h"

namespace steptwin {
namespace {

struct SavedUnit {
  std::int32_t stage = 0;
  SegmentKind kind = SegmentKind::Attention;
  std::int32_t layer = -1;
  std::vector<Parameter> parameters;  // in the order of the network
};

// In the order of the network.
std::vector<SavedUnit> saved_units(const Plan& plan) {
  std::vector<SavedUnit> units;
  for (const StagePlan& stage : plan.stages)
    for (const SegmentPlan& segment : stage.segments) {
      const bool copy = plan.ends_everywhere() && ((segment.kind == SegmentKind::Embedding && stage.stage > 0) ||
                                                   (segment.kind == SegmentKind::Head && !plan.last_stage(stage)));
      for (const Parameter& parameter : segment.parameters) {
        if (copy || parameter.tied) continue;
        if (is_end(segment.kind) || units.empty() || units.back().layer != segment.layer)
          units.push_back({stage.stage, segment.kind, segment.layer, {}});
        units.back().parameters.push_back(parameter);
      }
    }
  return units;
}

Layout saved_layout(const SavedUnit& unit, DType type) {
  Layout layout{kSavedPrefix + (unit.layer < 0 ? unit.parameters.front().name : fmt::format("layers.{}", unit.layer)), {}};
  Bytes offset;
  for (const Parameter& parameter : unit.parameters) {
    layout.tensors.push_back({parameter.name, type, parameter.shape, offset});
    offset += layout.tensors.back().bytes();
  }
  return layout;
}

// Ranks of one pipeline coordinate: the first replica, which hands parameters on, and the others.
enum class Replicas : std::uint8_t { First, Others };

std::vector<RankId> ranks_of(const Mesh& mesh, std::int32_t pipeline_rank, Replicas which) {
  std::vector<RankId> ranks;
  for (std::uint32_t rank = 0; rank < mesh.size(); ++rank) {
    const bool first = mesh.coordinate(RankId(rank), "dp") == 0;
    if (mesh.coordinate(RankId(rank), "pp") == static_cast<std::uint32_t>(pipeline_rank) && first == (which == Replicas::First))
      ranks.emplace_back(rank);
  }
  return ranks;
}

std::string program_name(const Mesh& mesh, std::int32_t pipeline_rank, Replicas which) {
  const std::int64_t last = axis_size(mesh, "dp") - 1;
  if (last == 0) return fmt::format("pp{}", pipeline_rank);
  if (which == Replicas::First) return fmt::format("pp{}dp0", pipeline_rank);
  return fmt::format("pp{}dp1{}", pipeline_rank, last > 1 ? fmt::format("-{}", last) : "");
}

// What all programs of the schedule share.
struct SaveIds {
  SharedIds shared;
  ZeroComms zero;
  CommId pipe;
};

SaveIds make_ids(const Plan& plan, ScheduleBuilder& builder) {
  SaveIds ids;
  ids.shared = make_shared_ids(plan, builder);
  const auto shards = [&](const char* name, SegmentKind kind) {
    const auto ranks = static_cast<std::uint32_t>(plan.replicas(kind)), size = static_cast<std::uint32_t>(plan.shard_ranks(kind));
    return builder.communicator(name, plan.replica_axes(kind), shard_groups(ranks, size));
  };
  if (plan.scenario->zero.level > 0) ids.zero.blocks = ids.zero.ends = shards("zero", SegmentKind::Attention);
  if (plan.ends_everywhere() && plan.sharded(SegmentKind::Head)) ids.zero.ends = shards("zero.ends", SegmentKind::Head);
  if (plan.ranks() > 1) ids.pipe = builder.communicator("pp", {"pp"});
  if (plan.tying != Tying::Remote) return ids;
  const auto first = static_cast<std::uint32_t>(plan.stages.front().rank), last = static_cast<std::uint32_t>(plan.stages.back().rank);
  builder.communicator("pp.tied", {"pp"}, {{std::min(first, last), std::max(first, last)}});  // says that the head's table is a copy
  return ids;
}

class SaveProgram {
 public:
  SaveProgram(const Plan& plan, const SaveIds& ids, std::int32_t rank, Replicas which, Emitter& emit)
      : plan_(plan), ids_(ids), rank_(rank), home_(plan.stages.front().rank), first_(which == Replicas::First), emit_(emit) {}

  void build(const std::vector<SavedUnit>& units) {
    make_residents();
    if (plan_.scenario->zero.level == 3) load_ = emit_.lane("load", Engine::Network, Priority::High);
    if (first_ && plan_.ranks() > 1) pipe_ = emit_.lane("pipe", Engine::Network, Priority::High);
    if (saves()) down_ = emit_.lane("down", Engine::CopyDown);
    for (const SavedUnit& unit : units) {
      if (holds(unit))
        hand_on(unit);
      else if (saves())
        receive(unit);
    }
  }

 private:
  struct Place {
    BufferId buffer;
    std::uint32_t tensor = 0;
  };

  bool saves() const { return first_ && rank_ == home_; }
  bool holds(const SavedUnit& unit) const { return stage_of(unit).rank == rank_ || everywhere(unit); }
  bool everywhere(const SavedUnit& unit) const { return plan_.ends_everywhere() && is_end(unit.kind); }
  const StagePlan& stage_of(const SavedUnit& unit) const { return plan_.stages[static_cast<std::size_t>(unit.stage)]; }
  const Program& built() const { return emit_.builder().so_far().programs.back(); }

  // As in a training step, and where every parameter is.
  void make_residents() {
    ProgramContext program{plan_, ids_.shared, emit_, rank_, LaneId(), make_tensors(plan_, rank_, ids_.shared, emit_), OpId(), {}};
    const ZeroOptions& zero = plan_.scenario->zero;
    if (zero.form == ZeroForm::Deepspeed)
      make_parameter_units(program, ids_.zero.blocks, zero.deepspeed.param_persistence_threshold);
    else if (zero.level > 0)
      make_zero_units(program, ids_.zero);
    for (std::uint32_t b = 0; b < built().buffers.size(); ++b) {
      const Buffer& buffer = built().buffers[b];
      if (buffer.category != Category::Param || buffer.space != Space::Device) continue;
      const std::vector<TensorSpec>& tensors = emit_.builder().so_far().layouts[buffer.layout.value].tensors;
      for (std::uint32_t tensor = 0; tensor < tensors.size(); ++tensor) places_[tensors[tensor].name] = {BufferId(b), tensor};
    }
  }

  OpId emit(OpBody body, LaneId lane, GroupId group, const SavedUnit& unit, const std::vector<Access>& accesses) {
    Op op;
    op.body = std::move(body);
    op.lane = lane;
    op.group = group;
    op.label.layer = unit.layer;
    if (unit.layer < 0) op.label.segment = ids_.shared.segment[static_cast<std::size_t>(unit.kind)];
    return emit_.op(op, accesses);
  }

  void hand_on(const SavedUnit& unit) {
    const std::map<BufferId, BufferId> gathered = gather(unit);
    if (!first_ || (everywhere(unit) && !saves())) return;
    const BufferId saved = saves() ? make_saved(unit) : BufferId();
    OpId last;
    for (std::uint32_t i = 0; i < unit.parameters.size(); ++i) {
      const Place place = places_.at(unit.parameters[i].name);
      const auto whole = gathered.find(place.buffer);
      const Access source = read(whole == gathered.end() ? place.buffer : whole->second, {Part::Kind::Tensor, place.tensor, 0});
      if (saves())
        copy_down(unit, i, source, saved);
      else
        last = emit(Send{ids_.pipe, type(), bytes(unit.parameters[i]), Peer{home_, false}}, pipe_, GroupId(), unit, {source});
    }
    if (!saves()) emit_.host_wait(last);
  }

  // The unit's shards -> what they are gathered into.
  std::map<BufferId, BufferId> gather(const SavedUnit& unit) {
    std::vector<BufferId> shards;
    for (const Parameter& parameter : unit.parameters) {
      const BufferId buffer = places_.at(parameter.name).buffer;
      const bool seen = std::find(shards.begin(), shards.end(), buffer) != shards.end();
      if (built().buffers[buffer.value].shard.valid() && !seen) shards.push_back(buffer);
    }
    const GroupId group = shards.size() > 1 ? emit_.new_group() : GroupId();
    std::map<BufferId, BufferId> gathered;
    for (const BufferId shard : shards) {
      const Buffer buffer = built().buffers[shard.value];
      const Bytes whole = buffer.bytes * plan_.shard_ranks(unit.kind);
      gathered[shard] = emit_.buffer(Category::GatheredParam, whole, buffer.layout);
      emit(AllGather{buffer.shard, type(), whole}, load_, group, unit, {read(shard), write(gathered[shard])});
    }
    return gathered;
  }

  void receive(const SavedUnit& unit) {
    const BufferId saved = make_saved(unit);
    for (std::uint32_t i = 0; i < unit.parameters.size(); ++i) {
      const Parameter& parameter = unit.parameters[i];
      const LayoutId layout = emit_.builder().layout({parameter.name, {{parameter.name, type(), parameter.shape, Bytes(0)}}});
      const BufferId received = emit_.buffer(Category::RecvBuffer, bytes(parameter), layout);
      emit(Recv{ids_.pipe, type(), bytes(parameter), Peer{stage_of(unit).rank, false}}, pipe_, GroupId(), unit, {write(received)});
      copy_down(unit, i, read(received), saved);
    }
  }

  void copy_down(const SavedUnit& unit, std::uint32_t parameter, const Access& source, BufferId saved) {
    const Bytes size = bytes(unit.parameters[parameter]);
    emit_.host_wait(emit(Copy{type(), type(), size}, down_, GroupId(), unit, {source, write(saved, {Part::Kind::Tensor, parameter, 0})}));
  }

  BufferId make_saved(const SavedUnit& unit) {
    const Layout layout = saved_layout(unit, type());
    const TensorSpec& last = layout.tensors.back();
    const BufferId saved =
        emit_.resident(layout.name, Category::GatheredParam, last.offset + last.bytes(), emit_.builder().layout(layout), Space::Pageable);
    emit_.builder().make_lazy(saved);
    return saved;
  }

  DType type() const { return plan_.scenario->compute; }
  Bytes bytes(const Parameter& parameter) const { return Bytes(parameter.elements() * size_of(type())); }

  const Plan& plan_;
  const SaveIds& ids_;
  const std::int32_t rank_, home_;  // pipeline coordinates: of this program, of the rank that saves
  const bool first_;                // replica
  Emitter& emit_;
  LaneId load_, pipe_, down_;
  std::map<std::string, Place> places_;  // of parameters that this rank holds, whole or a share of
};

}  // namespace

Schedule save_schedule(const Plan& plan) {
  ScheduleBuilder builder(plan.scenario->mesh);
  const SaveIds ids = make_ids(plan, builder);
  const std::vector<SavedUnit> units = saved_units(plan);
  Emitter emit(builder);
  const Mesh& mesh = plan.scenario->mesh;
  for (std::int32_t rank = 0; rank < plan.ranks(); ++rank)
    for (const Replicas which : {Replicas::First, Replicas::Others}) {
      std::vector<RankId> ranks = ranks_of(mesh, rank, which);
      if (ranks.empty()) continue;
      emit.begin_program(program_name(mesh, rank, which), std::move(ranks), plan.stages_of_rank[static_cast<std::size_t>(rank)]);
      SaveProgram(plan, ids, rank, which, emit).build(units);
    }
  return builder.finish();
}

}  // namespace steptwin
