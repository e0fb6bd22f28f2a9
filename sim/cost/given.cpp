#include "sim/cost/given.h"

#include <algorithm>
#include <compare>
#include <map>
#include <set>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

// Which time an op part shares. Stage -1: an update op of no particular stage in a program of several.
struct Key {
  Phase phase = Phase::None;
  std::int32_t stage = -1, chunk = -1, micro_batch = -1;
  auto operator<=>(const Key&) const = default;
};

struct Share {
  std::uint32_t op = 0;
  Flops flops;
  Bytes bytes;
};

using Sets = std::map<Key, std::vector<Share>>;

Duration time_of(const std::vector<Duration>& times, std::int32_t stage) {
  // A program without stages belongs to the only stage there is.
  const std::size_t index = stage < 0 && times.size() == 1 ? 0 : static_cast<std::size_t>(stage);
  invariant(index < times.size(), "given costs: a compute op lies on a stage that has no stated time");
  return times[index];
}

// The optimizer time of an update op of no particular stage: that of all stages of the program without update ops of their own.
Duration rest_of_optimizer(const GivenCost& given, const Program& program, const Sets& sets) {
  if (program.stages.empty()) return time_of(given.optimizer, -1);
  Duration sum{0};
  for (const std::int32_t stage : std::set<std::int32_t>(program.stages.begin(), program.stages.end())) {
    if (!sets.contains({Phase::Update, stage, -1, -1})) sum += time_of(given.optimizer, stage);
  }
  return sum;
}

Duration time_of_set(const GivenCost& given, const Program& program, const Sets& sets, const Key& key) {
  switch (key.phase) {
    case Phase::None: return Duration(0);
    case Phase::Forward:
    case Phase::Recompute: return time_of(given.forward, key.stage);
    case Phase::InputGrad: return time_of(given.input_grad, key.stage);
    case Phase::WeightGrad: return time_of(given.weight_grad, key.stage);
    case Phase::Backward: return time_of(given.input_grad, key.stage) + time_of(given.weight_grad, key.stage);
    case Phase::Update: return key.stage >= 0 ? time_of(given.optimizer, key.stage) : rest_of_optimizer(given, program, sets);
  }
  return Duration(0);
}

double weight_of(const Share& share, std::int64_t all_flops) {
  return static_cast<double>(all_flops > 0 ? share.flops.value : share.bytes.value);
}

// Adds every share's part of `time` to its op; the last gets the remainder.
void distribute(Duration time, const std::vector<Share>& shares, std::vector<Duration>& durations) {
  std::int64_t all_flops = 0;
  for (const Share& share : shares) all_flops += share.flops.value;
  double sum = 0;
  for (const Share& share : shares) sum += weight_of(share, all_flops);
  Duration left = time;
  for (std::size_t i = 0; i + 1 < shares.size() && sum > 0; ++i) {
    const double part = static_cast<double>(time.count()) * (weight_of(shares[i], all_flops) / sum);
    const Duration own = std::min(left, Duration(static_cast<std::int64_t>(part)));
    durations[shares[i].op] += own;
    left -= own;
  }
  durations[shares.back().op] += left;
}

Key key_of(const Schedule& schedule, const Program& program, const Op& op, const ComputePart& part) {
  const std::int32_t stage = schedule.stage_of(program, op);
  if (part.phase == Phase::Update) return {part.phase, stage, -1, -1};
  return {part.phase, stage, op.label.chunk, part.micro_batch};
}

Sets sets_of(const Schedule& schedule, const Program& program, const std::vector<Share>& works) {
  Sets sets;
  for (std::uint32_t i = 0; i < program.op_count; ++i) {
    const std::uint32_t id = program.first_op.value + i;
    const Op& op = schedule.ops[id];
    const Compute* compute = std::get_if<Compute>(&op.body);
    if (compute == nullptr || op.given >= Duration(0)) continue;
    for (const ComputePart& part : schedule.parts_of(*compute)) {
      if (part.phase == Phase::None) continue;
      Share share = part.work.valid() ? works[part.work.value] : Share{};
      share.op = id;
      sets[key_of(schedule, program, op, part)].push_back(share);
    }
  }
  return sets;
}

}  // namespace

GivenCosts::GivenCosts(const GivenCost& given, const Schedule& schedule) : durations_(schedule.ops.size(), Duration(0)), p2p_(given.p2p) {
  std::vector<Share> works;
  works.reserve(schedule.works.size());
  for (const Work& work : schedule.works) works.push_back({0, work.flops(), work.bytes()});
  for (const Program& program : schedule.programs) {
    const Sets sets = sets_of(schedule, program, works);
    for (const auto& [key, shares] : sets) distribute(time_of_set(given, program, sets, key), shares, durations_);
  }
}

Cost GivenCosts::compute(const Schedule& schedule, const Program&, const Op& op) const {
  if (op.given >= Duration(0)) return {op.given, Provenance::Given};
  const auto index = static_cast<std::size_t>(&op - schedule.ops.data());
  invariant(index < durations_.size(), "given costs: the op is no element of the schedule");
  return {durations_[index], Provenance::Given};
}

Cost GivenCosts::copy(const Schedule& schedule, const Program&, OpId op) const {
  return {std::max(schedule.ops[op.value].given, Duration(0)), Provenance::Given};
}

Cost GivenCosts::communicate(const Schedule&, const Program&, const Op& op, const CommShape&) const {
  if (op.given >= Duration(0)) return {op.given, Provenance::Given};
  return {is_point_to_point(op.body) ? p2p_ : Duration(0), Provenance::Given};
}

}  // namespace steptwin
