#include "sim/cost/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "schedule/base/error.h"
#include "schedule/ir/op_key.h"
#include "sim/cost/log_log.h"
#include "sim/cost/rates.h"

namespace steptwin {
namespace {

struct KeyPair {
  std::string exact, family;
};

KeyPair compute_key(std::string_view segment, std::string_view phase, std::string_view engine, const std::vector<std::string>& kernels) {
  KeyPair key;
  key.family = fmt::format("compute|{}|{}|{}|", segment, phase, engine);
  key.exact = key.family;
  for (const std::string& kernel : kernels) key.exact += kernel + ";";
  key.family += kernel_family(kernels);
  return key;
}

KeyPair transfer_key(const std::string& kind, const CommShape& shape, std::optional<DType> type, Bytes bytes) {
  KeyPair key;
  key.family = fmt::format("transfer|{}|{}|{}|{}|{}", kind, shape.members, shape.nodes, shape.members_per_node, type ? name_of(*type) : "");
  key.exact = fmt::format("{}|{}", key.family, bytes.value);
  return key;
}

KeyPair copy_key(std::string_view from, std::string_view to, const std::optional<std::pair<DType, DType>>& cast, Bytes bytes) {
  KeyPair key;
  key.family = fmt::format("copy|{}|{}|{}", from, to, cast ? fmt::format("{}-{}", name_of(cast->first), name_of(cast->second)) : "");
  key.exact = fmt::format("{}|{}", key.family, bytes.value);
  return key;
}

double size_of_work(Flops flops, Bytes bytes) { return flops.value > 0 ? real(flops) : real(bytes); }

Provenance weaker(Provenance a, Provenance b) { return std::min(a, b); }  // Given < Analytic < Interpolated < Measured

}  // namespace

MeasuredCosts::MeasuredCosts(const Machine& machine) : analytic_(machine) {
  invariant(machine.measured.has_value(), "measured costs need a calibrated machine");
  issue_is_turnaround_ = machine.host.slot_scope == SlotScope::Everything;
  for (const MeasuredCompute& row : machine.measured->compute) {
    KeyPair key = compute_key(row.segment, row.phase, row.engine, row.kernels);
    add(std::move(key.exact), std::move(key.family), {size_of_work(row.flops, row.bytes), real(row.bytes), row.timing.time});
  }
  for (const MeasuredTransfer& row : machine.measured->transfers) {
    KeyPair key = transfer_key(row.kind, {row.members, row.nodes, row.members_per_node}, row.dtype, row.bytes);
    add(std::move(key.exact), std::move(key.family), {real(row.bytes), real(row.bytes), row.timing.time});
  }
  for (const MeasuredCopy& row : machine.measured->copies) {
    KeyPair key = copy_key(row.from, row.to, row.cast, row.bytes);
    add(std::move(key.exact), std::move(key.family), {real(row.bytes), real(row.bytes), row.timing.time});
  }
  for (const MeasuredIssue& row : machine.measured->issue) issue_[row.kind] = row.timing.time;
  for (auto& [name, family] : families_)
    std::sort(family.begin(), family.end(),
              [](const Point& a, const Point& b) { return std::tie(a.size, a.bytes) < std::tie(b.size, b.bytes); });
}

void MeasuredCosts::add(std::string exact, std::string family, Point point) {
  exact_.emplace(std::move(exact), point.time);
  if (point.size > 0) families_[std::move(family)].push_back(point);
}

std::optional<Cost> MeasuredCosts::find(const std::string& exact, const std::string& family, double size, double bytes) const {
  if (const auto row = exact_.find(exact); row != exact_.end()) return Cost{row->second, Provenance::Measured};
  const auto points = families_.find(family);
  if (points == families_.end()) return std::nullopt;
  const Family& f = points->second;
  const auto above = std::lower_bound(f.begin(), f.end(), size, [](const Point& p, double value) { return p.size < value; });
  if (above == f.end() || above == f.begin()) return std::nullopt;
  const Point& high = *above;
  const Point& low = *(above - 1);
  if (bytes < std::min(low.bytes, high.bytes) || bytes > std::max(low.bytes, high.bytes)) return std::nullopt;
  if (low.time.count() <= 0 || high.time.count() <= 0) return std::nullopt;
  const double line = log_log_line(size, low.size, seconds(low.time), high.size, seconds(high.time));
  return Cost{ceil_ns(line), Provenance::Interpolated};
}

std::optional<Cost> MeasuredCosts::part_cost(const Schedule& schedule, const ComputePart& part, const char* engine) const {
  const Work none;
  const Work& work = part.work.valid() ? schedule.works[part.work.value] : none;
  const std::vector<std::string> kernels = kernel_texts(work);
  const auto find_as = [&](Phase phase) {
    const KeyPair key = compute_key(schedule.name(part.segment), name_of(phase), engine, kernels);
    return find(key.exact, key.family, size_of_work(work.flops(), work.bytes()), real(work.bytes()));
  };
  std::optional<Cost> cost = find_as(part.phase);
  if (cost || part.phase != Phase::Recompute) return cost;
  cost = find_as(Phase::Forward);  // a recomputed forward launches the forward's kernels
  if (cost) cost->provenance = Provenance::Interpolated;
  return cost;
}

// One part unknown: the analytic model answers for the whole op.
Cost MeasuredCosts::compute(const Schedule& schedule, const Program& program, const Op& op) const {
  if (op.given >= Duration(0)) return {op.given, Provenance::Given};
  const char* const engine = name_of(program.lanes[op.lane.value].engine);
  Cost sum{Duration(0), Provenance::Measured};
  for (const ComputePart& part : schedule.parts_of(std::get<Compute>(op.body))) {
    const std::optional<Cost> cost = part_cost(schedule, part, engine);
    if (!cost) return analytic_.compute(schedule, program, op);
    sum.duration += cost->duration;
    sum.provenance = weaker(sum.provenance, cost->provenance);
  }
  return sum;
}

Cost MeasuredCosts::copy(const Schedule& schedule, const Program& program, OpId id) const {
  const Op& op = schedule.ops[id.value];
  if (op.given >= Duration(0)) return {op.given, Provenance::Given};
  const CopyPath path = copy_path(schedule, program, id);
  const KeyPair key = copy_key(name_of(path.from), name_of(path.to), cast_of(std::get<Copy>(op.body)), path.read);
  const std::optional<Cost> cost = find(key.exact, key.family, real(path.read), real(path.read));
  return cost ? *cost : analytic_.copy(schedule, program, id);
}

Cost MeasuredCosts::communicate(const Schedule& schedule, const Program& program, const Op& op, const CommShape& shape) const {
  if (op.given >= Duration(0)) return {op.given, Provenance::Given};
  const Bytes bytes = bytes_of(op.body);
  const KeyPair key = transfer_key(transfer_kind(op.body), shape, calculated_type(op.body), bytes);
  const std::optional<Cost> cost = find(key.exact, key.family, real(bytes), real(bytes));
  return cost ? *cost : analytic_.communicate(schedule, program, op, shape);
}

CostModel::Launch MeasuredCosts::launch(const Schedule& schedule, const Op& op) const {
  if (issue_is_turnaround_ || std::holds_alternative<HostWait>(op.body)) return {};
  const auto row = issue_.find(kind_name(op.body));
  return row == issue_.end() ? analytic_.launch(schedule, op) : Launch{row->second, row->second};
}

}  // namespace steptwin
