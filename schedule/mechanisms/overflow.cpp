// The overflow check of mixed-precision training, as BMTrain's optimizer manager does it (specs/bmtrain.md 8): one kernel per gradient
// group finds values that are not finite, the flag is all-reduced (maximum) over all ranks, the host reads it, and every optimizer op is
// guarded: on overflow the step leaves parameters and states as they were. All of it on the compute lane, which is drained by the read.
#include <algorithm>

#include "schedule/mechanisms/all.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {
namespace {

constexpr Bytes kFlagBytes{4};

class Overflow : public Mechanism {
 public:
  Overflow(const Plan& plan, ScheduleBuilder& builder) {
    std::vector<std::string> axes;
    for (const Axis& axis : plan.scenario->mesh.axes)
      if (axis.name == "pp" || axis.name == "dp") axes.push_back(axis.name);
    comm_ = builder.communicator("overflow", axes);
    check_ = builder.name("check");
    decide_ = builder.name("decide");
    flag_ = builder.layout({"flag", {{"flag", DType::Fp32, {1}, {}}}});
  }

  void begin(const Visits& visits, ProgramContext& program) override { at_ = before_updates(program.plan, visits); }

  void before(const Visits&, std::size_t i, ProgramContext& program) override {
    if (i != at_) return;
    const BufferId overflow = program.emit.buffer(Category::Other, kFlagBytes, flag_);
    check_gradients(overflow, program);
    Op reduce;
    reduce.body = AllReduce{comm_, DType::Fp32, kFlagBytes, AllReduce::Reduction::Max};
    reduce.lane = program.compute;
    reduce.label = {Phase::None, check_, -1, -1, -1, -1};
    const OpId reduced = program.emit.op(reduce, {update(overflow)});
    program.tensors.update_guard = program.emit.buffer(Category::Other, kFlagBytes, flag_);
    program.emit.compute(program.compute, {Phase::None, decide_, -1, -1, -1, -1}, program.emit.builder().work(fill_work(1, DType::Fp32)),
                         {read(overflow), write(program.tensors.update_guard)});
    program.emit.host_wait(reduced);
  }

 private:
  void check_gradients(BufferId overflow, ProgramContext& program) {
    bool first = true;
    for (std::size_t chunk = 0; chunk < program.tensors.homes.size(); ++chunk)
      for (const SegmentHome& home : program.tensors.homes[chunk])
        for (const StoredGroup& group : home.groups) {
          const Label label{Phase::None, check_, -1, static_cast<std::int32_t>(chunk), -1, -1};
          const WorkId work = program.emit.builder().work(check_work(group.elements, program.plan.scenario->gradient));
          program.emit.compute(program.compute, label, work,
                               {read(group.gradient, group.gradient_part), first ? write(overflow) : update(overflow)});
          first = false;
        }
    if (first)  // all of the rank's parameters are frozen
      program.emit.compute(program.compute, {Phase::None, program.emit.builder().name("fill"), -1, -1, -1, -1},
                           program.emit.builder().work(fill_work(1, DType::Fp32)), {write(overflow)});
  }

  CommId comm_;
  NameId check_, decide_;
  LayoutId flag_;
  std::size_t at_ = 0;  // visit
};

}  // namespace

bool overflow_active(const Plan& plan) { return plan.scenario->overflow_check; }

std::unique_ptr<Mechanism> make_overflow(const Plan& plan, ScheduleBuilder& builder) { return std::make_unique<Overflow>(plan, builder); }

}  // namespace steptwin
