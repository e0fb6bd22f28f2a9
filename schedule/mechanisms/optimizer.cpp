// Adam: one op per segment, under ZeRO per flat group, on the compute lane (phase U), behind the reductions of its gradient.
//
// Offloaded (specs/bmtrain.md 8), as BMTrain does it: first the gradients of all groups are copied down into pinned buffers, one copy and
// so one event per group; then group by group the host's cores step it behind its copy (lane `host`) and the parameter is copied up. All
// copies run on the compute lane: nothing overlaps forward or backward, and what goes up queues behind all that comes down. The issuing
// thread waits for the last step at the end: the steps are its own work.
#include <algorithm>

#include "schedule/mechanisms/all.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {
namespace {

class Optimizer : public Mechanism {
 public:
  void begin(const Visits& visits, ProgramContext& program) override {
    const auto is_update = [](const Visit& visit) { return visit.kind == VisitKind::Update; };
    first_ = static_cast<std::size_t>(std::find_if(visits.begin(), visits.end(), is_update) - visits.begin());
    last_ = static_cast<std::size_t>(visits.rend() - std::find_if(visits.rbegin(), visits.rend(), is_update));  // 1 + its place
    lane_ = program.plan.scenario->offload && first_ < visits.size() ? program.emit.lane("host", Engine::Host) : program.compute;
  }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (visits[i].kind != VisitKind::Update) return;
    const bool offload = program.plan.scenario->offload;
    for (std::size_t k = i; offload && i == first_ && k < visits.size(); ++k) {
      if (visits[k].kind == VisitKind::Update) copy_down(visits[k], program);
    }
    OpId step;
    for (const StoredGroup& group : program.home(visits[i].chunk, visits[i].segment).groups) {
      step = adam(group, visits[i], program);
      if (offload) copy_up(group, visits[i], program);
    }
    if (offload && i + 1 == last_) program.emit.host_wait(step);
  }

 private:
  static Label label(NameId what, const Visit& visit, const ProgramContext& program) {
    return {Phase::Update, what, program.segment(visit).layer, visit.chunk, -1, -1};
  }

  OpId adam(const StoredGroup& group, const Visit& visit, ProgramContext& program) const {
    const Scenario& scenario = *program.plan.scenario;
    const bool host = scenario.offload;
    std::vector<Access> accesses = {host ? read(group.host_gradient) : read(group.gradient, group.gradient_part),
                                    host ? update(group.host_param) : update(group.param, group.param_part)};
    for (const BufferId state : {group.master, group.first_moment, group.second_moment}) {
      if (state.valid()) accesses.push_back(update(state));
    }
    const AdamPrecision precision{scenario.compute, scenario.master, scenario.gradient, DType::Fp32};
    const WorkId work = program.emit.builder().work(adam_work(group.elements, precision));
    return guarded(program.emit.compute(lane_, label(program.ids.adam, visit, program), work, accesses), program);
  }

  static void copy_down(const Visit& visit, ProgramContext& program) {
    for (const StoredGroup& group : program.home(visit.chunk, visit.segment).groups)
      copy(program.plan.scenario->gradient, group, label(program.ids.down, visit, program),
           {read(group.gradient, group.gradient_part), write(group.host_gradient)}, program);
  }

  static void copy_up(const StoredGroup& group, const Visit& visit, ProgramContext& program) {
    copy(program.plan.scenario->compute, group, label(program.ids.up, visit, program),
         {read(group.host_param), write(group.param, group.param_part)}, program);
  }

  static void copy(DType type, const StoredGroup& group, const Label& label, const std::vector<Access>& accesses, ProgramContext& program) {
    Op op;
    op.body = Copy{type, type, Bytes(group.elements * size_of(type))};
    op.lane = program.compute;
    op.label = label;
    guarded(program.emit.op(op, accesses), program);
  }

  static OpId guarded(OpId op, ProgramContext& program) {
    program.emit.builder().at(op).guard = program.tensors.update_guard;
    return op;
  }

  std::size_t first_ = 0, last_ = 0;  // Update visits; last_ one behind
  LaneId lane_;                       // of the steps
};

}  // namespace

bool optimizer_active(const Plan& plan) { return plan.scenario->optimizer == OptimizerKind::Adam; }

std::unique_ptr<Mechanism> make_optimizer(const Plan&, ScheduleBuilder&) { return std::make_unique<Optimizer>(); }

}  // namespace steptwin
