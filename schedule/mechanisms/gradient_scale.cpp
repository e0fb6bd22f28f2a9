// Between the reductions and the optimizer: the gradients' common norm is held to a limit (clip), and the loss scale is divided out again.
//
//   norm     a kernel per gradient group adds its sum of squares into the rank's own, of gradients without the loss scale
//   reduce   one fp32 all-reduce (sum) over the ranks that hold distinct pieces; the host reads it, as BMTrain's clip_grad_norm does
//   factor   min(1, clip / (norm + 1e-6)) / loss scale
//   rescale  the loss scale of the next step: divided by its factor on overflow, multiplied behind so many good steps (the one op here that
//            an overflow does not hold back)
//   scale    every gradient group times the factor, in place
//
// A piece that several ranks hold counts once. Copies over dp: the all-reduce spans pp alone when nothing is sharded, else pp and one shard
// group of the layers. Embedding and head are summed apart and divided by the number of their copies when several of its ranks hold the
// same (zero.ends; a pipeline of batches, where every stage has whole ones, or with shard_ranks a shard group of them). The copy of a tied
// table counts with the embedding. Everything runs on the compute lane (specs/bmtrain.md 8).
#include <algorithm>

#include "schedule/mechanisms/all.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {
namespace {

// Positions over pp and dp of every shard group together with its likes on the other stages; empty: one group of all.
std::vector<std::vector<std::uint32_t>> norm_groups(const Plan& plan) {
  const Mesh& mesh = plan.scenario->mesh;
  const auto pp = static_cast<std::uint32_t>(axis_size(mesh, "pp")), dp = static_cast<std::uint32_t>(axis_size(mesh, "dp"));
  const auto size = static_cast<std::uint32_t>(plan.shard_ranks(SegmentKind::Attention));
  std::vector<std::vector<std::uint32_t>> groups;
  if (size == dp) return groups;
  groups.resize(dp / size);
  const bool dp_inside = mesh.axis("pp") < mesh.axis("dp");
  for (std::uint32_t i = 0; i < pp * dp; ++i) groups[(dp_inside ? i % dp : i / pp) / size].push_back(i);
  return groups;
}

// How many ranks of the all-reduce hold the same piece of embedding and head: those that have any over the pieces that it is cut into. A
// shard group lies within the all-reduce, whatever the order of the mesh: both are runs of consecutive ranks.
std::int64_t copies_of_ends(const Plan& plan) {
  const std::int64_t over_dp = plan.scenario->zero.level > 0 ? plan.shard_ranks(SegmentKind::Attention) : 1;
  const std::int64_t over_pp = plan.ends_everywhere() ? axis_size(plan.scenario->mesh, "pp") : 1;
  return over_dp * over_pp / (plan.sharded(SegmentKind::Head) ? plan.shard_ranks(SegmentKind::Head) : 1);
}

class GradientScale : public Mechanism {
 public:
  GradientScale(const Plan& plan, ScheduleBuilder& builder) : scenario_(*plan.scenario), shards_(scenario_.zero.level > 0) {
    factor_layout_ = builder.layout({"factor", {{"factor", DType::Fp32, {1}, {}}}});
    factor_ = builder.name("factor"), scale_ = builder.name("scale");
    if (scenario_.clip > 0) set_up_clip(plan, builder);
    if (scenario_.loss_scaling.initial == 0) return;
    rescale_ = builder.name("rescale");
    builder.constant("loss_scale", scenario_.loss_scaling.initial);
    builder.constant("loss_scale_factor", scenario_.loss_scaling.factor);
    builder.constant("loss_scale_steps", static_cast<double>(scenario_.loss_scaling.good_steps));
  }

  void begin(const Visits& visits, ProgramContext& program) override { at_ = before_updates(program.plan, visits); }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (i != at_) return;
    const bool steps = visits[i].kind == VisitKind::Update;  // else all of the rank's parameters are frozen
    const BufferId norm = scenario_.clip > 0 ? sum_squares(program) : BufferId();
    const BufferId factor = steps ? make_factor(norm, program) : BufferId();
    if (program.tensors.loss_scale.valid())
      compute(rescale_, -1, fill_work(3, DType::Fp32), {read(program.tensors.update_guard), update(program.tensors.loss_scale)}, program);
    if (steps) scale(factor, program);
  }

 private:
  BufferId make_factor(BufferId norm, ProgramContext& program) const {
    const BufferId factor = program.emit.buffer(Category::Other, Bytes(size_of(DType::Fp32)), factor_layout_);
    std::vector<Access> accesses;
    if (norm.valid()) accesses.push_back(read(norm));
    if (program.tensors.loss_scale.valid()) accesses.push_back(read(program.tensors.loss_scale));
    accesses.push_back(write(factor));
    guarded(compute(factor_, -1, fill_work(1, DType::Fp32), accesses, program), program);
    return factor;
  }

  void set_up_clip(const Plan& plan, ScheduleBuilder& builder) {
    std::vector<std::string> axes;
    std::int64_t members = 1;
    for (const Axis& axis : scenario_.mesh.axes) {
      if (axis.name != "pp" && (axis.name != "dp" || !shards_)) continue;
      axes.push_back(axis.name);
      members *= axis.name == "dp" ? plan.shard_ranks(SegmentKind::Attention) : axis.size;
    }
    if (members > 1) comm_ = builder.communicator("norm", axes, shards_ ? norm_groups(plan) : std::vector<std::vector<std::uint32_t>>());
    fill_ = builder.name("fill"), norm_ = builder.name("norm");
    builder.constant("clip", scenario_.clip);
    Layout layout{"norm", {{"distinct", DType::Fp32, {1}, Bytes(0)}}};
    const std::int64_t copies = copies_of_ends(plan);
    copies_ = copies > 1;
    if (copies_) layout.tensors.push_back({"copied", DType::Fp32, {1}, Bytes(size_of(DType::Fp32))});
    if (copies_) builder.constant("norm_copies", static_cast<double>(copies));
    norm_layout_ = builder.layout(std::move(layout));
  }

  static OpId compute(NameId what, std::int32_t chunk, const Work& work, const std::vector<Access>& accesses, ProgramContext& program) {
    return program.emit.compute(program.compute, {Phase::Update, what, -1, chunk, -1, -1}, program.emit.builder().work(work), accesses);
  }
  static OpId guarded(OpId op, ProgramContext& program) {
    program.emit.builder().at(op).guard = program.tensors.update_guard;
    return op;
  }

  template <class Visitor>
  static void each_segment(ProgramContext& program, Visitor visit) {
    for (std::size_t chunk = 0; chunk < program.tensors.homes.size(); ++chunk) {
      const StagePlan& stage = program.stage(static_cast<std::int32_t>(chunk));
      for (std::size_t k = 0; k < stage.segments.size(); ++k)
        visit(static_cast<std::int32_t>(chunk), stage.segments[k], program.tensors.homes[chunk][k]);
    }
  }

  BufferId sum_squares(ProgramContext& program) {
    const Bytes bytes((copies_ ? 2 : 1) * size_of(DType::Fp32));
    const BufferId norm = program.emit.buffer(Category::Other, bytes, norm_layout_);
    const OpId zero = program.emit.compute(program.compute, {Phase::None, fill_, -1, -1, -1, -1},
                                           program.emit.builder().work(fill_work(1, DType::Fp32)), {write(norm)});
    OpId last = guarded(zero, program);
    each_segment(program, [&](std::int32_t chunk, const SegmentPlan& segment, const SegmentHome& home) {
      for (const StoredGroup& group : home.groups) last = add_group(chunk, segment, group, norm, program);
    });
    if (comm_.valid()) {
      Op reduce;
      reduce.body = AllReduce{comm_, DType::Fp32, bytes};
      reduce.lane = program.compute;
      reduce.label = {Phase::Update, norm_, -1, -1, -1, -1};
      last = guarded(program.emit.op(reduce, {update(norm)}), program);
    }
    program.emit.host_wait(last);
    return norm;
  }

  // The squares of one group; of a whole buffer that also holds the copy of a tied table, of its other tensors.
  OpId add_group(std::int32_t chunk, const SegmentPlan& segment, const StoredGroup& group, BufferId norm, ProgramContext& program) {
    const bool tied = segment.kind == SegmentKind::Head && program.plan.tying == Tying::Remote;
    const auto is_copy = [&](const StoredParameter& parameter) { return tied && parameter.name == "head.weight"; };
    OpId last(program.emit.builder().next_op() - 1);
    if (std::none_of(group.parameters.begin(), group.parameters.end(), is_copy))
      return add_part(chunk, segment, {group.gradient, group.gradient_part}, group.elements, norm, program);
    for (std::uint32_t t = 0; t < group.parameters.size(); ++t) {  // of a copy that is sharded, a group of its own, nothing
      if (is_copy(group.parameters[t])) continue;
      last = add_part(chunk, segment, {group.gradient, {Part::Kind::Tensor, t, 0}}, group.parameters[t].elements(), norm, program);
    }
    return last;
  }

  OpId add_part(std::int32_t chunk, const SegmentPlan& segment, std::pair<BufferId, Part> gradient, std::int64_t elements, BufferId norm,
                ProgramContext& program) {
    const std::uint32_t which = copies_ && is_end(segment.kind) ? 1 : 0;
    std::vector<Access> accesses = {read(gradient.first, gradient.second)};
    if (program.tensors.loss_scale.valid()) accesses.push_back(read(program.tensors.loss_scale));
    accesses.push_back(update(norm, {Part::Kind::Tensor, which, 0}));
    return guarded(compute(norm_, chunk, check_work(elements, scenario_.gradient), accesses, program), program);
  }

  void scale(BufferId factor, ProgramContext& program) {
    each_segment(program, [&](std::int32_t chunk, const SegmentPlan&, const SegmentHome& home) {
      for (const StoredGroup& group : home.groups)
        guarded(compute(scale_, chunk, scale_work(group.elements, scenario_.gradient),
                        {read(factor), update(group.gradient, group.gradient_part)}, program),
                program);
    });
  }

  const Scenario& scenario_;
  const bool shards_;
  bool copies_ = false;
  std::size_t at_ = 0;  // visit
  CommId comm_;  // none: a rank's own sum is the norm's
  NameId fill_, norm_, factor_, rescale_, scale_;
  LayoutId norm_layout_, factor_layout_;
};

}  // namespace

bool gradient_scale_active(const Plan& plan) { return plan.scenario->clip > 0 || plan.scenario->loss_scaling.initial > 0; }

std::unique_ptr<Mechanism> make_gradient_scale(const Plan& plan, ScheduleBuilder& builder) {
  return std::make_unique<GradientScale>(plan, builder);
}

}  // namespace steptwin
