#include "sim/cost/analytic.h"

#include <fmt/format.h>

#include "schedule/base/error.h"
#include "sim/cost/alpha_beta.h"
#include "sim/cost/copy_path.h"
#include "sim/cost/host_rate.h"
#include "sim/cost/roofline.h"

namespace steptwin {
namespace {

bool states_duration(const Op& op) { return op.given >= Duration(0); }

// The kernels of the op's parts, in order.
template <class Visit>
void for_each_work(const Schedule& schedule, const Op& op, Visit visit) {
  for (const ComputePart& part : schedule.parts_of(std::get<Compute>(op.body))) {
    if (part.work.valid()) visit(schedule.works[part.work.value]);
  }
}

std::size_t kernel_count(const Schedule& schedule, const Op& op) {
  std::size_t count = 0;
  for_each_work(schedule, op, [&](const Work& work) { count += work.kernels.size(); });
  return count;
}

[[noreturn]] void refuse_storage(const Program& program, const Lane& lane) {
  Diagnostic problem;
  problem.code = "NO-RATE";
  problem.text = fmt::format("compute on lane {} of program {} runs on a disk, which computes nothing", lane.name, program.name);
  problem.help = "give the op its duration, or put it on a compute or host lane";
  throw InputError(problem);
}

double seconds_on(const Machine& machine, const Program& program, const Lane& lane, const Work& work) {
  if (work.kernels.empty()) return 0;
  if (lane.engine == Engine::Storage) refuse_storage(program, lane);
  return lane.engine == Engine::Host ? host_work_seconds(machine, work) : work_seconds(machine.device, work);
}

}  // namespace

Cost AnalyticCosts::compute(const Schedule& schedule, const Program& program, const Op& op) const {
  if (states_duration(op)) return {op.given, Provenance::Given};
  double time = 0;
  for_each_work(schedule, op, [&](const Work& work) { time += seconds_on(machine_, program, program.lanes[op.lane.value], work); });
  return {ceil_ns(time), Provenance::Analytic};
}

Cost AnalyticCosts::copy(const Schedule& schedule, const Program& program, OpId id) const {
  const Op& op = schedule.ops[id.value];
  if (states_duration(op)) return {op.given, Provenance::Given};
  return {ceil_ns(copy_seconds(machine_, copy_path(schedule, program, id))), Provenance::Analytic};
}

Cost AnalyticCosts::communicate(const Schedule&, const Program&, const Op& op, const CommShape& shape) const {
  if (states_duration(op)) return {op.given, Provenance::Given};
  return {ceil_ns(communication_seconds(machine_, op.body, shape)), Provenance::Analytic};
}

CostModel::Launch AnalyticCosts::launch(const Schedule& schedule, const Op& op) const {
  if (std::holds_alternative<HostWait>(op.body)) return {};
  if (!std::holds_alternative<Compute>(op.body)) return {machine_.host.transfer_launch, machine_.host.transfer_launch};
  const std::size_t kernels = kernel_count(schedule, op);
  if (kernels == 0) return {};
  const std::int64_t first = ns(machine_.host.kernel_launch);
  std::int64_t total = 0;
  if (__builtin_mul_overflow(first, static_cast<std::int64_t>(kernels), &total)) total = INT64_MAX;  // refused by check_time_range
  return {Duration(total), Duration(first)};
}

}  // namespace steptwin
