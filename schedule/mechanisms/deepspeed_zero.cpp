// ZeRO-3 as DeepSpeed does it (specs/schedules.md 5.4, specs/memory.md 2.9): every parameter is sharded by itself, and the coordinator of
// fetch_coordinator.h says what is gathered and freed around every use of a submodule, in the steady state (its trace is complete).
//
//   before a use    lane `gather`: the parameters that it misses, one call (a group of all-gathers)
//                   host: waits while more than two fetches are unfinished (a fetch: one that a use had to wait for)
//                   compute waits for all that stands on `gather` so far
//                   lane `gather`: parameters of later uses, one call
//   behind a use    parameters that the coordinator frees have had their last access
//   gradients       gradient_buckets.h, on lane `reduce` (overlap_comm) or in the order of the compute lane
//   behind Adam     persistent parameters are gathered again, one call
//
// Gathers and reductions are one process group's: one communicator, where they run in the order of issue whatever their lanes
// (communicators 2: one each).
// The submodules are our segments: attention half, MLP half, embedding, head, every visit (F, R, B) a use. DeepSpeed's are the leaf modules
// (a projection, a norm), unless whole halves are named by set_z3_leaf_modules. So one call fetches what DeepSpeed fetches with two to four
// of them, a half's parameters live for the whole half, and the gradients of a half become final together.
// The embedding's backward fetches its parameters too, as DeepSpeed's hook does, although it reads none.
// A trace lasts until no micro-batch is in flight: forward and backward of one, or with a pipeline of all that overlap.
// A tied head on the embedding's rank uses its table, whose gradient is final with the embedding's backward.
// Gradients are written by their one contribution; where a shard has padding, they start as zeros instead, filled on the compute lane.
#include <algorithm>
#include <optional>

#include "schedule/mechanisms/all.h"
#include "schedule/mechanisms/fetch_coordinator.h"
#include "schedule/mechanisms/gradient_buckets.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {
namespace {

bool is_use(const Visit& visit) { return visit.kind == VisitKind::Segment; }

// Whether a trace ends with each visit: no micro-batch is in flight behind it.
std::vector<bool> trace_ends(const Visits& visits) {
  std::vector<bool> ends(visits.size());
  std::int64_t in_flight = 0;
  for (std::size_t i = 0; i < visits.size(); ++i) {
    const Visit& visit = visits[i];
    if (!is_use(visit)) continue;
    if (visit.phase == Phase::Forward && visit.opens) ++in_flight;
    if (visit.phase == Phase::Backward && visit.closes) ends[i] = --in_flight == 0;
  }
  return ends;
}

class DeepspeedZero : public Mechanism {
 public:
  DeepspeedZero(const Plan& plan, ScheduleBuilder& builder)
      : options_(plan.scenario->zero.deepspeed), comm_(builder.communicator("zero", {"dp"})), reduce_comm_(comm_) {
    if (plan.scenario->zero.communicators == 2) reduce_comm_ = builder.communicator("zero.reduce", {"dp"});
  }

  void begin(const Visits& visits, ProgramContext& program) override {
    gather_lane_ = program.emit.lane("gather", Engine::Network, Priority::High);
    const LaneId reduce = options_.overlap_comm ? program.emit.lane("reduce", Engine::Network, Priority::High) : program.compute;
    buckets_.emplace(reduce_comm_, reduce, options_.reduce_bucket_size);
    fetches_ = {};
    list_parameters(program);
    make_traces(visits, program);
    last_update_ = visits.size();
    for (std::size_t i = 0; i < visits.size(); ++i)
      if (visits[i].kind == VisitKind::Update) last_update_ = i;
  }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (!is_use(visits[i])) return;
    if (next_trace_ < traces_.size() && traces_[next_trace_].first == i) coordinator_->begin(std::move(traces_[next_trace_++].uses));
    enter(visits[i], program);
  }

  void after(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (is_use(visits[i])) leave(visits[i], program);
    if (i == last_update_) gather_persistent(visits[i], program);
  }

 private:
  struct Held {
    std::size_t unit = 0, group = 0;  // of units_
    bool persistent = false;
    bool in_flight = false;  // gathered, and no use has waited for it
  };
  struct Trace {
    std::size_t first = 0;  // visit
    FetchCoordinator::Uses uses;
  };

  void list_parameters(ProgramContext& program) {
    units_ = make_parameter_units(program, comm_, options_.param_persistence_threshold);
    parameters_.clear(), first_parameter_.clear(), first_unit_.clear();
    std::vector<FetchedParameter> sizes;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (units_[u].first_segment == 0) first_unit_.push_back(u);
      first_parameter_.push_back(parameters_.size());
      SegmentHome& home = home_of(u, program);
      for (std::size_t g = 0; g < units_[u].groups.size(); ++g) {
        const std::int64_t elements = elements_of(u, g, program);
        const bool persistent = elements <= options_.param_persistence_threshold;
        home.param.push_back(persistent ? units_[u].groups[g].stored.param : BufferId());
        parameters_.push_back({u, g, persistent, false});
        sizes.push_back({elements, persistent});
      }
    }
    coordinator_.emplace(std::move(sizes),
                         FetchLimits{options_.prefetch_bucket_size, options_.max_live_parameters, options_.max_reuse_distance});
  }

  void make_traces(const Visits& visits, const ProgramContext& program) {
    traces_.clear();
    next_trace_ = 0;
    const std::vector<bool> ends = trace_ends(visits);
    bool open = false;
    for (std::size_t i = 0; i < visits.size(); ++i) {
      if (!is_use(visits[i])) continue;
      if (!open) traces_.push_back({i, {}});
      traces_.back().uses.push_back(parameters_of(visits[i], program));
      open = !ends[i];
    }
  }

  std::size_t unit_of(std::int32_t chunk, std::int32_t segment) const {
    return first_unit_[static_cast<std::size_t>(chunk)] + static_cast<std::size_t>(segment);
  }
  SegmentHome& home_of(std::size_t unit, ProgramContext& program) const {
    return program.home(units_[unit].chunk, units_[unit].first_segment);
  }
  const SegmentPlan& segment_of(std::size_t unit, const ProgramContext& program) const {
    return program.stage(units_[unit].chunk).segments[static_cast<std::size_t>(units_[unit].first_segment)];
  }
  std::int64_t elements_of(std::size_t unit, std::size_t group, const ProgramContext& program) const {
    return segment_of(unit, program).parameters[group].elements();
  }
  static bool shares_table(const Visit& visit, const ProgramContext& program) {
    return program.segment(visit).kind == SegmentKind::Head && program.plan.tying == Tying::Local;
  }

  std::vector<std::size_t> parameters_of(const Visit& visit, const ProgramContext& program) const {
    std::vector<std::size_t> out;
    const std::size_t unit = unit_of(visit.chunk, visit.segment);
    if (shares_table(visit, program)) out.push_back(first_parameter_[unit_of(0, 0)] + program.plan.table_tensor);
    for (std::size_t g = 0; g < units_[unit].groups.size(); ++g) out.push_back(first_parameter_[unit] + g);
    return out;
  }

  Label label_of(std::size_t unit, Phase phase, std::int32_t micro_batch, const ProgramContext& program) const {
    const SegmentPlan& segment = segment_of(unit, program);
    return {phase,
            program.ids.segment[static_cast<std::size_t>(segment.kind)],
            segment.layer,
            units_[unit].chunk,
            program.plan.shown_micro_batch(segment.kind, micro_batch),
            -1};
  }

  void enter(const Visit& visit, ProgramContext& program) {
    if (visit.phase == Phase::Backward) open_gradients(visit, program);
    const FetchCoordinator::Fetch fetch = coordinator_->enter();
    gather(fetch.now, visit, program);
    const OpId arrived = program.emit.last_on(gather_lane_);
    wait_on_host(visit, arrived, program);
    gather(fetch.ahead, visit, program);
    if (visit.phase == Phase::Backward && program.segment(visit).kind == SegmentKind::Embedding) hold_parameters(visit, program);
    if (arrived.valid()) program.emit.next_follows(arrived, gather_lane_);
  }

  void wait_on_host(const Visit& visit, OpId arrived, ProgramContext& program) {
    bool waits = false;
    for (const std::size_t p : parameters_of(visit, program)) waits = waits || parameters_[p].in_flight, parameters_[p].in_flight = false;
    if (!waits) return;
    if (const OpId oldest = fetches_.oldest(); oldest.valid()) program.emit.host_wait(oldest);
    fetches_.record(arrived);
  }

  void gather(const std::vector<std::size_t>& parameters, const Visit& visit, ProgramContext& program) {
    const DType type = program.plan.scenario->compute;
    const GroupId call = parameters.size() > 1 ? program.emit.new_group() : GroupId();
    for (const std::size_t p : parameters) {
      Held& held = parameters_[p];
      const ZeroGroup& group = units_[held.unit].groups[held.group];
      const Bytes bytes(group.cut.gathered * size_of(type));
      const BufferId whole = program.emit.buffer(Category::GatheredParam, bytes, group.param_layout);
      emit_gather(call, label_of(held.unit, visit.phase, visit.micro_batch, program), bytes, {read(group.stored.param), write(whole)},
                  program);
      home_of(held.unit, program).param[held.group] = whole;
      held.in_flight = true;
    }
  }

  void emit_gather(GroupId call, const Label& label, Bytes bytes, const std::vector<Access>& accesses, ProgramContext& program) const {
    Op op;
    op.body = AllGather{comm_, program.plan.scenario->compute, bytes};
    op.lane = gather_lane_;
    op.group = call;
    op.label = label;
    program.emit.op(op, accesses);
  }

  void hold_parameters(const Visit& visit, ProgramContext& program) {
    SegmentHome& home = program.home(visit.chunk, visit.segment);
    const std::size_t first = first_parameter_[unit_of(visit.chunk, visit.segment)];
    for (std::size_t g = 0; g < home.param.size(); ++g)
      if (!parameters_[first + g].persistent) home.held.push_back(home.param[g]);
  }

  void leave(const Visit& visit, ProgramContext& program) {
    for (const std::size_t p : coordinator_->leave()) home_of(parameters_[p].unit, program).param[parameters_[p].group] = BufferId();
    program.home(visit.chunk, visit.segment).held.clear();
    if (visit.phase != Phase::Backward) return;
    close_gradients(visit, program);
    if (visit.closes) buckets_->finish_backward(program);
  }

  void open_gradients(const Visit& visit, ProgramContext& program) {
    open_gradients(unit_of(visit.chunk, visit.segment), visit, program);
    if (shares_table(visit, program)) open_gradients(unit_of(0, 0), visit, program);
  }

  void open_gradients(std::size_t index, const Visit& visit, ProgramContext& program) {
    const std::vector<ZeroGroup>& groups = units_[index].groups;
    SegmentHome& home = home_of(index, program);
    if (!home.gradient.empty()) return;
    const DType type = program.plan.scenario->gradient;
    for (const ZeroGroup& group : groups)
      home.gradient.push_back(program.emit.buffer(Category::Gradient, Bytes(group.cut.gathered * size_of(type)), group.gradient_layout));
    home.zeroed = false;
    for (std::size_t g = 0; g < groups.size(); ++g) home.zeroed = home.zeroed || groups[g].cut.gathered != elements_of(index, g, program);
    home.gradient_written = false;
    if (segment_of(index, program).kind == SegmentKind::Embedding) program.tensors.table_gradient_written = false;
    Label label = label_of(index, Phase::None, visit.micro_batch, program);
    label.segment = program.ids.fill;
    for (std::size_t g = 0; home.zeroed && g < groups.size(); ++g)
      program.emit.compute(program.compute, label, program.emit.builder().work(fill_work(groups[g].cut.gathered, type)),
                           {write(home.gradient[g])});
  }

  void close_gradients(const Visit& visit, ProgramContext& program) {
    const std::size_t unit = unit_of(visit.chunk, visit.segment);
    SegmentHome& home = home_of(unit, program);
    const Label label = label_of(unit, Phase::Backward, visit.micro_batch, program);
    for (std::size_t g = 0; g < units_[unit].groups.size(); ++g)
      buckets_->add({&units_[unit].groups[g], elements_of(unit, g, program), home.gradient[g], label}, program);
    home.gradient.clear();
  }

  void gather_persistent(const Visit& visit, ProgramContext& program) {
    const auto count = std::count_if(parameters_.begin(), parameters_.end(), [](const Held& held) { return held.persistent; });
    const GroupId call = count > 1 ? program.emit.new_group() : GroupId();
    for (const Held& held : parameters_) {
      if (!held.persistent) continue;
      const ZeroGroup& group = units_[held.unit].groups[held.group];
      emit_gather(call, label_of(held.unit, Phase::Update, visit.micro_batch, program),
                  Bytes(group.cut.gathered * size_of(program.plan.scenario->compute)),
                  {read(group.stored.param, group.stored.param_part), write(group.stored.param)}, program);
    }
  }

  const DeepspeedOptions options_;
  CommId comm_, reduce_comm_;  // of the gathers and shards; of the reductions
  LaneId gather_lane_;
  std::vector<ZeroUnit> units_;               // one a segment, in order
  std::vector<std::size_t> first_unit_;       // [chunk]
  std::vector<std::size_t> first_parameter_;  // [unit]
  std::vector<Held> parameters_;              // as the coordinator numbers them
  std::optional<FetchCoordinator> coordinator_;
  std::optional<GradientBuckets> buckets_;
  EventBacklog fetches_;
  std::vector<Trace> traces_;
  std::size_t next_trace_ = 0, last_update_ = 0;
};

}  // namespace

bool deepspeed_zero_active(const Plan& plan) { return plan.scenario->zero.level > 0 && plan.scenario->zero.form == ZeroForm::Deepspeed; }

std::unique_ptr<Mechanism> make_deepspeed_zero(const Plan& plan, ScheduleBuilder& builder) {
  return std::make_unique<DeepspeedZero>(plan, builder);
}

}  // namespace steptwin
