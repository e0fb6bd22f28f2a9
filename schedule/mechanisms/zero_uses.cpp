#include "schedule/mechanisms/zero_uses.h"

#include <algorithm>
#include <array>
#include <optional>

namespace steptwin {
namespace {

constexpr std::size_t kNoUnit = static_cast<std::size_t>(-1);

// [chunk][segment] -> unit
std::vector<std::vector<std::size_t>> units_of_segments(const ProgramContext& program, const std::vector<ZeroUnit>& units) {
  std::vector<std::vector<std::size_t>> of(program.tensors.chunks.size());
  for (std::size_t chunk = 0; chunk < of.size(); ++chunk) of[chunk].assign(program.tensors.chunks[chunk].segments(), kNoUnit);
  for (std::size_t u = 0; u < units.size(); ++u)
    for (std::int32_t k = 0; k < units[u].segments; ++k)
      of[static_cast<std::size_t>(units[u].chunk)][static_cast<std::size_t>(units[u].first_segment + k)] = u;
  for (std::size_t chunk = 0; chunk < of.size(); ++chunk) {
    const StagePlan& stage = program.stage(static_cast<std::int32_t>(chunk));
    for (std::size_t k = 0; k < of[chunk].size(); ++k) of[chunk][k] = of[chunk][static_cast<std::size_t>(stage.segments[k].home)];
  }
  return of;
}

bool is_backward(Phase phase) { return phase == Phase::Backward || phase == Phase::InputGrad || phase == Phase::WeightGrad; }

ZeroUse::Kind kind_of(Phase phase) {
  return phase == Phase::Forward ? ZeroUse::Kind::Forward : phase == Phase::Recompute ? ZeroUse::Kind::Again : ZeroUse::Kind::Backward;
}

// A block's recomputation and its backward are one use, and so are layers in a row that share its parameters: only the outermost of them
// enters and leaves.
bool continues(const ZeroUse& use, const Visit& before, const Visit& visit, std::size_t unit) {
  if (use.unit != unit || before.micro_batch != visit.micro_batch) return false;
  return (use.kind == ZeroUse::Kind::Forward) == (visit.phase == Phase::Forward);
}

bool in_list(const ZeroUse& use, const std::vector<ZeroUnit>& units) {
  return use.kind != ZeroUse::Kind::Forward && !units[use.unit].stand_alone();
}

// Micro-batches that are pieces of one batch enter a unit together, with the first of them in each direction, and leave it with the last
// one's backward. Blocks that enter once a step do it with their first forward: all of the step is one batch without directions.
void mark_batches(std::vector<ZeroUse>& uses, const Plan& plan, const std::vector<ZeroUnit>& units, const Visits& visits) {
  const bool once = plan.scenario->zero.enter == ZeroEnter::Step;
  if (plan.pieces == 1 && !once) return;
  const auto batch_of = [&](const ZeroUse& use) { return once ? 0 : plan.batch_of(visits[use.first].micro_batch); };
  const auto concerned = [&](const ZeroUse& use) { return !once || !units[use.unit].stand_alone(); };
  std::array<std::vector<std::int32_t>, 2> entered;  // [backward][unit]: batch
  for (auto& batches : entered) batches.assign(units.size(), -1);
  for (ZeroUse& use : uses) {
    if (!concerned(use)) continue;
    std::int32_t& last = entered[once || use.kind == ZeroUse::Kind::Forward ? 0 : 1][use.unit];
    use.enters = last != batch_of(use);
    last = batch_of(use);
  }
  std::vector<std::int32_t> left(units.size(), -1);
  for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
    if (!concerned(*use)) continue;
    const bool last_direction = use->kind == ZeroUse::Kind::Backward || (use->kind == ZeroUse::Kind::Forward && !use->returns);
    use->leaves = last_direction && left[use->unit] != batch_of(*use);
    if (use->leaves) left[use->unit] = batch_of(*use);
  }
}

void mark_ends(std::vector<ZeroUse>& uses, const std::vector<ZeroUnit>& units, const Visits& visits) {
  std::vector<bool> seen(units.size()), has_backward(units.size());
  for (const ZeroUse& use : uses)
    if (use.kind == ZeroUse::Kind::Backward) has_backward[use.unit] = true;
  std::optional<std::size_t> later;  // the list use that follows
  for (std::size_t n = uses.size(); n-- > 0;) {
    ZeroUse& use = uses[n];
    if (use.kind == ZeroUse::Kind::Backward && !seen[use.unit]) use.ends_gradient = seen[use.unit] = true;
    use.returns = use.kind == ZeroUse::Kind::Forward && has_backward[use.unit];
    if (!in_list(use, units)) continue;
    const Visit& own = visits[use.first];
    const Visit* next = later ? &visits[uses[*later].first] : nullptr;
    use.ends_list = next == nullptr || next->micro_batch != own.micro_batch || next->chunk != own.chunk;
    later = n;
  }
}

}  // namespace

std::vector<ZeroUse> zero_uses(const ProgramContext& program, const std::vector<ZeroUnit>& units, const Visits& visits) {
  const auto of = units_of_segments(program, units);
  std::vector<ZeroUse> uses;
  bool open = false;
  for (std::size_t i = 0; i < visits.size(); ++i) {
    const Visit& visit = visits[i];
    if (visit.kind != VisitKind::Segment) continue;
    const std::size_t unit = of[static_cast<std::size_t>(visit.chunk)][static_cast<std::size_t>(visit.segment)];
    open = open && unit != kNoUnit && continues(uses.back(), visits[uses.back().last], visit, unit);
    if (!open && unit != kNoUnit) {
      uses.push_back({kind_of(visit.phase), i, i, unit});
      open = true;
    }
    if (!open) continue;
    ZeroUse& use = uses.back();
    use.last = i;
    if (is_backward(visit.phase)) use.kind = ZeroUse::Kind::Backward;
    use.reads_parameters = use.kind != ZeroUse::Kind::Backward || program.segment(visit).kind != SegmentKind::Embedding;
  }
  mark_ends(uses, units, visits);
  mark_batches(uses, program.plan, units, visits);
  return uses;
}

}  // namespace steptwin
