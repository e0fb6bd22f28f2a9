// Adam: one op per segment, under ZeRO per flat group, on the compute lane (phase U), behind the reductions of its gradient.
#include "schedule/mechanisms/all.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {
namespace {

class Optimizer : public Mechanism {
 public:
  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    const Visit& visit = visits[i];
    if (visit.kind != VisitKind::Update) return;
    const Scenario& scenario = *program.plan.scenario;
    const SegmentPlan& segment = program.segment(visit);
    const AdamPrecision precision{scenario.compute, scenario.master, scenario.gradient, DType::Fp32};
    for (const StoredGroup& group : program.home(visit.chunk, visit.segment).groups) {
      std::vector<Access> accesses = {read(group.gradient, group.gradient_part), update(group.param, group.param_part)};
      for (const BufferId state : {group.master, group.first_moment, group.second_moment}) {
        if (state.valid()) accesses.push_back(update(state));
      }
      const WorkId work = program.emit.builder().work(adam_work(group.elements, precision));
      const OpId op = program.emit.compute(program.compute, {Phase::Update, program.ids.adam, segment.layer, visit.chunk, -1, -1}, work, accesses);
      program.emit.builder().at(op).guard = program.tensors.update_guard;
    }
  }
};

}  // namespace

bool optimizer_active(const Plan& plan) { return plan.scenario->optimizer == OptimizerKind::Adam; }

std::unique_ptr<Mechanism> make_optimizer(const Plan&, ScheduleBuilder&) { return std::make_unique<Optimizer>(); }

}  // namespace steptwin
