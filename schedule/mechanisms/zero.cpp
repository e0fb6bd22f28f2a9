// ZeRO as BMTrain schedules it (specs/bmtrain.md 4-6): a block enters (gathers its parameters, opens its gradient buffers), computes, and
// leaves (reduce-scatters its gradients, drops what it gathered). Everything but compute and accumulation runs on the lane `load`.
//
//   enter    host: wait for the record of the enter `prefetch` enters before, record the compute lane (blocks only)
//            load: all-gather of the unit's groups (level 3), zero-fill of its gradient buffers (backward)
//   leave    compute: the step's earlier gradient shard is added into the own slice of the new gradients
//            load: reduce-scatter (sum) into the shard, overwriting it
//   forward  enter, compute, leave.
//   backward form list: enter(i), leave(i+1), record the load lane; compute(i). Behind the last block: leave, record. So gather(i) is
//            issued before reduce-scatter(i+1), and the host enters i once reduce-scatter(i+2) has ended.
//            form block: enter(i), compute(i), leave(i): no overlap.
//            form fsdp (specs/schedules.md 5.2, without its copies): as list, but reductions run on the lane `reduce` and a communicator
//            of their own (communicators 1: not), and nothing makes the host wait. compute(i) waits for reduce-scatter(i+2): one
//            reduction is outstanding. gather(i) waits until compute(i+1) may start: for the recorded op and reduce-scatter(i+3). In
//            the forward it waits until compute(i-2) may start: for the op recorded before that.
// Stand-alone parameters (embedding, head) are gathered at their use without throttle, held from forward to backward, and reduced
// behind their backward; a head that shares the embedding's table on its rank uses the embedding's copies. reshard off holds blocks, too:
// a copy serves all micro-batches in flight and dies with the last one's backward.
// Where embedding and head stand on every rank of a pipeline (form bmtrain), they are sharded over all ranks, on communicator zero.ends.
// There the micro-batches of a batch share one enter, one gather and one reduction of a block: an enter with the first of them in each
// direction, a leave with the last one's backward.
// Frozen parameters (groups without gradient) are gathered with the others and that is all. A unit without a trained one opens no
// gradients and leaves nothing behind, so what its enter recorded on the compute lane stands; one without a backward is not entered there,
// and its copy is dropped behind every forward use. A frozen table that a head shares is held for the head's backward.
// enter step: a block enters once a step, with its first forward: gathered, its gradient buffers open (BMTrain's 1F1B branch,
// specs/bmtrain.md 11). It leaves with its last backward; in between it keeps both. Stand-alone parameters do as ever.
// Levels 1 and 2 keep whole parameters: nothing is gathered, but the optimizer's shards are all-gathered behind each step of a unit.
// The first optimizer op waits for the last reduction, as BMTrain's `backward` does.
// Hybrid sharding: the shards' sums are added over the replicas (communicator zero.replicas) with the step's last reduction.
#include <array>

#include "schedule/mechanisms/all.h"
#include "schedule/mechanisms/reduce_cast.h"
#include "schedule/mechanisms/zero_uses.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {
namespace {

std::vector<std::vector<std::uint32_t>> replica_groups(std::uint32_t ranks, std::uint32_t size) {
  std::vector<std::vector<std::uint32_t>> groups(size);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) groups[rank % size].push_back(rank);
  return groups;
}

// The communicators of the units of one sort.
struct Domain {
  CommId gather, reduce, replicas;  // no replicas: shards span all ranks
};

Domain make_domain(const Plan& plan, SegmentKind kind, const std::string& name, ScheduleBuilder& builder) {
  const auto ranks = static_cast<std::uint32_t>(plan.replicas(kind)), size = static_cast<std::uint32_t>(plan.shard_ranks(kind));
  const std::vector<std::string> axes = plan.replica_axes(kind);
  Domain domain;
  domain.gather = domain.reduce = builder.communicator(name, axes, shard_groups(ranks, size));
  if (plan.scenario->zero.form == ZeroForm::Fsdp && plan.scenario->zero.communicators == 2)
    domain.reduce = builder.communicator(name + ".reduce", axes, shard_groups(ranks, size));
  if (size < ranks) domain.replicas = builder.communicator(name + ".replicas", axes, replica_groups(ranks, size));
  return domain;
}

// When the host may issue: every enter waits for what the enter `depth` before it has recorded, or one that is `more` before that.
class Throttle {
 public:
  explicit Throttle(std::int64_t depth) : depth_(static_cast<std::size_t>(depth)) {}
  // Gives what this enter waits for; none = nothing.
  OpId enter(OpId last_compute, std::size_t more) {
    const bool waits = depth_ > 0 && records_.size() >= depth_ + more;
    const OpId target = waits ? records_[records_.size() - depth_ - more] : OpId();
    records_.push_back(last_compute);
    return target;
  }
  void record(OpId last_load) {
    if (!records_.empty()) records_.back() = last_load;
  }

 private:
  std::size_t depth_;
  std::vector<OpId> records_;  // [enter]: the op whose end it stands for; none = nothing was queued
};

class Zero : public Mechanism {
 public:
  Zero(const Plan& plan, ScheduleBuilder& builder) : options_(plan.scenario->zero), throttle_(0) {
    blocks_ = ends_ = make_domain(plan, SegmentKind::Attention, "zero", builder);
    if (plan.ends_everywhere() && plan.sharded(SegmentKind::Head)) ends_ = make_domain(plan, SegmentKind::Head, "zero.ends", builder);
  }

  void begin(const Visits& visits, ProgramContext& program) override {
    lane_ = reduce_lane_ = program.emit.lane("load", Engine::Network, Priority::High);
    if (options_.form == ZeroForm::Fsdp) reduce_lane_ = program.emit.lane("reduce", Engine::Network, Priority::High);
    units_ = make_zero_units(program, {blocks_.gather, ends_.gather});
    uses_ = zero_uses(program, units_, visits);
    states_.assign(units_.size(), {});
    throttle_ = Throttle(options_.prefetch);
    next_ = 0;
    pending_ = nullptr;
    last_load_ = OpId();
    reductions_ = {};
    last_written_ = last_reduced_ = BufferId();
    for (const ZeroUnit& unit : units_) prepare_homes(unit, program);
  }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (visits[i].kind == VisitKind::Update && last_reduced_.valid()) {
      program.emit.next_waits_for(last_reduced_);
      last_reduced_ = BufferId();
    }
    if (next_ < uses_.size() && uses_[next_].first == i) enter(uses_[next_], visits[i], program);
  }

  void after(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (visits[i].kind == VisitKind::Update && options_.level < 3) gather_updated(visits[i], program);
    if (next_ < uses_.size() && uses_[next_].last == i) finish(uses_[next_++], visits[i], program);
  }

 private:
  struct State {
    std::vector<BufferId> gathered;   // [group]; empty: not gathered
    std::vector<BufferId> gradients;  // [trained group] whole ones; empty: none open
    int held = 0;                     // forward uses whose backward is to come
    bool reduced = false;             // the shard holds an earlier sum of this step
  };

  bool once(const ZeroUnit& unit) const { return options_.enter == ZeroEnter::Step && !unit.stand_alone(); }
  const Domain& domain(const ZeroUnit& unit) const { return unit.stand_alone() ? ends_ : blocks_; }

  static Label label_of(const ZeroUnit& unit, Phase phase, const Visit& visit, const ProgramContext& program) {
    const NameId segment =
        unit.stand_alone()
            ? program.ids
                  .segment[static_cast<std::size_t>(program.stage(unit.chunk).segments[static_cast<std::size_t>(unit.first_segment)].kind)]
            : NameId();
    const SegmentKind kind = unit.stand_alone() ? SegmentKind::Head : SegmentKind::Attention;
    return {phase, segment, unit.layer, unit.chunk, program.plan.shown_micro_batch(kind, visit.micro_batch), -1};
  }

  // Tells the homes of a unit where something of each of its groups is now: of those that have parameters in the segment.
  static void tell_homes(const ZeroUnit& unit, const std::vector<ZeroGroup>& groups, const std::vector<BufferId>& buffers,
                         std::vector<BufferId> SegmentHome::*place, ProgramContext& program) {
    for (std::int32_t k = 0; k < unit.segments; ++k) {
      std::vector<BufferId>& own = program.home(unit.chunk, unit.first_segment + k).*place;
      own.clear();
      for (std::size_t g = 0; g < buffers.size(); ++g)
        if (groups[g].of_segment[static_cast<std::size_t>(k)]) own.push_back(buffers[g]);
    }
  }

  void prepare_homes(const ZeroUnit& unit, ProgramContext& program) {
    for (std::int32_t k = 0; k < unit.segments; ++k) program.home(unit.chunk, unit.first_segment + k).zeroed = true;
    std::vector<BufferId> whole;
    for (const ZeroGroup& group : unit.groups) whole.push_back(group.stored.param);
    if (options_.level < 3) tell_homes(unit, unit.groups, whole, &SegmentHome::param, program);
  }

  // The other unit that a head uses: the embedding's, when it shares its table.
  std::size_t shared_unit(const ZeroUse& use, const ProgramContext& program) const {
    const ZeroUnit& unit = units_[use.unit];
    const SegmentKind kind = program.stage(unit.chunk).segments[static_cast<std::size_t>(unit.first_segment)].kind;
    return kind == SegmentKind::Head && program.plan.tying == Tying::Local ? 0 : use.unit;
  }

  void enter(const ZeroUse& use, const Visit& visit, ProgramContext& program) {
    const bool backward = use.kind == ZeroUse::Kind::Backward, gathers = options_.level == 3 && use.reads_parameters;
    const bool opens = backward && options_.level == 2 && !units_[use.unit].trained.empty();
    if (use.enters && !units_[use.unit].stand_alone() && (gathers || opens)) throttle(use, program);
    const std::size_t shared = shared_unit(use, program);
    for (const std::size_t unit : {use.unit, shared}) {
      if (gathers) gather(unit, use, visit, program);
      const bool begins = backward || (use.enters && once(units_[unit]));  // its gradients
      if (begins && (unit == use.unit || program.plan.table_trained)) open_gradients(unit, visit, program);
    }
    if (pending_ != nullptr && !units_[use.unit].stand_alone()) leave_list(visit, program);
    if (backward && options_.form == ZeroForm::Fsdp && reductions_[0].valid()) program.emit.next_follows(reductions_[0], reduce_lane_);
  }

  void throttle(const ZeroUse& use, ProgramContext& program) {
    const bool one_more = options_.form == ZeroForm::Fsdp && use.kind == ZeroUse::Kind::Forward;
    const OpId target = throttle_.enter(program.emit.last_on(program.compute), one_more ? 1 : 0);
    if (!target.valid()) return;
    if (options_.form != ZeroForm::Fsdp) return void(program.emit.host_wait(target));
    program.emit.next_follows(target, program.compute);
    if (use.kind != ZeroUse::Kind::Forward && reductions_[0].valid()) program.emit.next_follows(reductions_[0], reduce_lane_);
  }

  void gather(std::size_t index, const ZeroUse& use, const Visit& visit, ProgramContext& program) {
    const ZeroUnit& unit = units_[index];
    State& state = states_[index];
    if (!state.gathered.empty()) return;
    const DType type = program.plan.scenario->compute;
    const Phase phase = use.kind == ZeroUse::Kind::Forward ? Phase::Forward
                        : use.kind == ZeroUse::Kind::Again ? Phase::Recompute
                                                           : Phase::Backward;
    const GroupId group_id = unit.groups.size() > 1 ? program.emit.new_group() : GroupId();
    for (const ZeroGroup& group : unit.groups) {
      const Bytes bytes(group.cut.gathered * size_of(type));
      state.gathered.push_back(program.emit.buffer(Category::GatheredParam, bytes, group.param_layout));
      emit(AllGather{domain(unit).gather, type, bytes}, group_id, label_of(unit, phase, visit, program),
           {read(group.stored.param), write(state.gathered.back())}, program);
    }
    tell_homes(unit, unit.groups, state.gathered, &SegmentHome::param, program);
  }

  void open_gradients(std::size_t index, const Visit& visit, ProgramContext& program) {
    const ZeroUnit& unit = units_[index];
    State& state = states_[index];
    if (!state.gradients.empty()) return;
    const DType type = program.plan.scenario->gradient;
    for (const ZeroGroup& group : unit.trained) {
      const Bytes bytes(group.cut.gathered * size_of(type));
      state.gradients.push_back(options_.level == 1 ? group.stored.gradient
                                                    : program.emit.buffer(Category::Gradient, bytes, group.gradient_layout));
      Label label = label_of(unit, Phase::None, visit, program);
      label.segment = program.ids.fill;
      last_load_ = program.emit.compute(lane_, label, program.emit.builder().work(fill_work(group.cut.gathered, type)),
                                        {write(state.gradients.back())});
      last_written_ = state.gradients.back();
    }
    tell_homes(unit, unit.trained, state.gradients, &SegmentHome::gradient, program);
  }

  void emit(OpBody body, GroupId group, const Label& label, const std::vector<Access>& accesses, ProgramContext& program) {
    Op op;
    op.body = std::move(body);
    const bool gather = std::holds_alternative<AllGather>(op.body);
    op.lane = gather ? lane_ : reduce_lane_;
    op.group = group;
    op.label = label;
    last_load_ = program.emit.op(op, accesses);
    last_written_ = accesses.back().buffer;
  }

  // Behind the last visit of a use.
  void finish(const ZeroUse& use, const Visit& visit, ProgramContext& program) {
    const ZeroUnit& unit = units_[use.unit];
    drop_parameters(use, program);
    if (use.kind == ZeroUse::Kind::Forward || !use.leaves || unit.trained.empty()) return;
    if (options_.form == ZeroForm::Block || unit.stand_alone()) return leave(use, visit, program);
    pending_ = &use;
    if (use.ends_list) leave_list(visit, program);
  }

  void drop_parameters(const ZeroUse& use, ProgramContext& program) {
    const ZeroUnit& unit = units_[use.unit];
    State& state = states_[use.unit];
    const std::size_t table = shared_unit(use, program);
    const bool holds = unit.stand_alone() || !options_.reshard;
    if (use.kind == ZeroUse::Kind::Forward && (use.returns ? holds : shares_frozen_table(use.unit, program))) ++state.held;
    if (use.kind == ZeroUse::Kind::Backward && holds) --state.held;
    if (use.kind == ZeroUse::Kind::Backward && table != use.unit && shares_frozen_table(table, program)) release(table, program);
    const bool used_again = !use.leaves && (once(unit) || (use.kind == ZeroUse::Kind::Forward && !use.returns));
    if (options_.level == 3 && state.held == 0 && !used_again) drop(use.unit, program);
  }

  // A table that is held for the backward of the head that shares it, as its own segment has none.
  bool shares_frozen_table(std::size_t unit, const ProgramContext& program) const {
    const SegmentKind kind = program.stage(units_[unit].chunk).segments[static_cast<std::size_t>(units_[unit].first_segment)].kind;
    return kind == SegmentKind::Embedding && program.plan.tying == Tying::Local && units_[unit].trained.empty();
  }

  void release(std::size_t unit, ProgramContext& program) {
    if (--states_[unit].held == 0 && options_.level == 3) drop(unit, program);
  }

  void drop(std::size_t unit, ProgramContext& program) {
    states_[unit].gathered.clear();
    tell_homes(units_[unit], units_[unit].groups, {}, &SegmentHome::param, program);
  }

  void leave_list(const Visit& visit, ProgramContext& program) {
    const ZeroUse& use = *pending_;
    pending_ = nullptr;
    leave(use, visit, program);
    if (options_.form == ZeroForm::List) throttle_.record(last_load_);
  }

  void leave(const ZeroUse& use, const Visit& visit, ProgramContext& program) {
    if (use.kind != ZeroUse::Kind::Backward || (options_.reduce == ZeroReduce::Step && !use.ends_gradient)) return;
    const ZeroUnit& unit = units_[use.unit];
    State& state = states_[use.unit];
    if (state.reduced) accumulate(unit, state, visit, program);
    reduce(unit, state, visit, program);
    if (domain(unit).replicas.valid() && use.ends_gradient) reduce_over_replicas(unit, visit, program);
    state.reduced = true;
    state.gradients.clear();
    tell_homes(unit, unit.trained, {}, &SegmentHome::gradient, program);
  }

  // On the compute lane, which by then waits for all that stands on the load lane.
  void accumulate(const ZeroUnit& unit, const State& state, const Visit& visit, ProgramContext& program) {
    const DType type = program.plan.scenario->gradient;
    for (std::size_t g = 0; g < unit.trained.size(); ++g) {
      const ZeroGroup& group = unit.trained[g];
      Label label = label_of(unit, Phase::None, visit, program);
      label.segment = program.ids.accumulate;
      if (options_.form != ZeroForm::Fsdp) program.emit.next_waits_for(last_written_);
      program.emit.compute(program.compute, label, program.emit.builder().work(accumulate_work(group.cut.partition, type, type)),
                           {read(group.stored.gradient), update(state.gradients[g], {Part::Kind::Shard, domain(unit).gather.value, 0})});
    }
  }

  // precision.reduce of another type: casts of all groups before, and of their shards behind, on the same lane.
  void reduce(const ZeroUnit& unit, const State& state, const Visit& visit, ProgramContext& program) {
    const DType type = program.plan.scenario->reduce;
    const Label label = label_of(unit, Phase::Backward, visit, program);
    ReduceCast cast(*program.plan.scenario, reduce_lane_, label);
    std::vector<BufferId> sources;
    for (std::size_t g = 0; g < unit.trained.size(); ++g)
      sources.push_back(cast.source(state.gradients[g], {}, unit.trained[g].cut.gathered, program.emit));
    const GroupId group_id = unit.trained.size() > 1 ? program.emit.new_group() : GroupId();
    for (std::size_t g = 0; g < unit.trained.size(); ++g) {
      const StoredGroup& stored = unit.trained[g].stored;
      const BufferId target = cast.target(stored.gradient, stored.gradient_part, unit.trained[g].cut.partition, program.emit);
      const Part part = cast.casts() ? Part() : stored.gradient_part;
      emit(ReduceScatter{domain(unit).reduce, type, Bytes(unit.trained[g].cut.gathered * size_of(type))}, group_id, label,
           {read(sources[g]), write(target, part)}, program);
    }
    finish_reduction(unit, cast, program);
    reductions_ = {reductions_[1], last_load_};
  }

  void reduce_over_replicas(const ZeroUnit& unit, const Visit& visit, ProgramContext& program) {
    const DType type = program.plan.scenario->reduce;
    const Label label = label_of(unit, Phase::Backward, visit, program);
    ReduceCast cast(*program.plan.scenario, reduce_lane_, label);
    for (const ZeroGroup& group : unit.trained) {
      const BufferId buffer = cast.before(group.stored.gradient, group.stored.gradient_part, group.cut.partition, program.emit);
      const Part part = cast.casts() ? Part() : group.stored.gradient_part;
      emit(AllReduce{domain(unit).replicas, type, Bytes(group.cut.partition * size_of(type))}, GroupId(), label, {update(buffer, part)}, program);
    }
    finish_reduction(unit, cast, program);
  }

  void finish_reduction(const ZeroUnit& unit, ReduceCast& cast, ProgramContext& program) {
    if (const OpId last = cast.behind(program.emit); last.valid()) last_load_ = last;
    last_written_ = last_reduced_ = unit.trained.back().stored.gradient;
  }

  void gather_updated(const Visit& visit, ProgramContext& program) {
    const DType type = program.plan.scenario->compute;
    for (const ZeroUnit& unit : units_) {
      if (unit.chunk != visit.chunk || unit.stepped_with != visit.segment) continue;
      for (const ZeroGroup& group : unit.trained)
        emit(AllGather{domain(unit).gather, type, Bytes(group.cut.gathered * size_of(type))}, GroupId(),
             label_of(unit, Phase::Update, visit, program), {read(group.stored.param, group.stored.param_part), write(group.stored.param)},
             program);
    }
  }

  const ZeroOptions options_;
  Domain blocks_, ends_;
  LaneId lane_, reduce_lane_;
  std::vector<ZeroUnit> units_;
  std::vector<ZeroUse> uses_;
  std::vector<State> states_;  // [unit]
  Throttle throttle_;
  std::size_t next_ = 0;              // use
  const ZeroUse* pending_ = nullptr;  // form list: it has computed, but not left
  OpId last_load_;
  std::array<OpId, 2> reductions_;        // the last one and, first, the one before it
  BufferId last_written_, last_reduced_;  // on the load lane
};

}  // namespace

bool zero_active(const Plan& plan) { return plan.scenario->zero.level > 0 && plan.scenario->zero.form != ZeroForm::Deepspeed; }

std::unique_ptr<Mechanism> make_zero(const Plan& plan, ScheduleBuilder& builder) { return std::make_unique<Zero>(plan, builder); }

}  // namespace steptwin
