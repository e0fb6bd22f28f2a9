#include "schedule/visits.h"

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/mechanisms/gradient_order.h"
#include "schedule/orders/actions.h"

namespace steptwin {
namespace {

Phase phase_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::F:
      return Phase::Forward;
    case ActionKind::B:
      return Phase::Backward;
    case ActionKind::I:
      return Phase::InputGrad;
    case ActionKind::W:
      return Phase::WeightGrad;
    default:
      return Phase::None;
  }
}

void add_segments(const StagePlan& stage, const Action& action, Visits& visits) {
  const std::size_t first = visits.size();
  const auto in = static_cast<std::int32_t>(stage.in), out = static_cast<std::int32_t>(stage.out);
  for (std::int32_t k = in; k < out; ++k) {
    const std::int32_t segment = action.kind == ActionKind::F ? k : in + out - 1 - k;
    if (!stage.segments[static_cast<std::size_t>(segment)].has(phase_of(action.kind))) continue;
    visits.push_back(
        {VisitKind::Segment, phase_of(action.kind), ActionKind::SendF, stage.chunk, segment, action.micro_batch, false, false});
  }
  if (visits.size() == first) return;
  visits[first].opens = true;
  visits.back().closes = true;
}

// Form bmtrain: the visits of embedding and head on every rank, where the layers turn from one batch or direction to another. They carry
// the batch's first micro-batch.
class Ends {
 public:
  Ends(const Plan& plan, std::int32_t rank, Visits& visits) : plan_(plan), rank_(rank), visits_(visits) {}

  void before(const Action& action) {
    if (!plan_.ends_everywhere()) return;
    const bool forward = action.kind == ActionKind::F || action.kind == ActionKind::SendF || action.kind == ActionKind::RecvF;
    const std::int32_t batch = plan_.batch_of(action.micro_batch);
    if (batch == batch_ && forward == forward_) return;
    if (forward) {
      finish();
      batch_ = batch;
      add(0, Phase::Forward);
    } else {
      add(head(), Phase::Forward);
      add(head(), Phase::Backward);
    }
    forward_ = forward;
  }
  void finish() {
    if (batch_ >= 0) add(0, Phase::Backward);
  }

 private:
  std::int32_t head() const { return static_cast<std::int32_t>(plan_.stage_at(rank_, 0).out); }
  void add(std::int32_t segment, Phase phase) {
    if (!plan_.stage_at(rank_, 0).segments[static_cast<std::size_t>(segment)].has(phase)) return;
    visits_.push_back({VisitKind::Segment, phase, ActionKind::SendF, 0, segment, batch_ * plan_.pieces, false, false});
  }

  const Plan& plan_;
  std::int32_t rank_;
  Visits& visits_;
  std::int32_t batch_ = -1;
  bool forward_ = false;
};

// Gradients of a hidden state that nobody needs are not sent.
bool carries(const Plan& plan, const StagePlan& stage, ActionKind message) {
  if (message == ActionKind::SendB) return plan.hands_down(stage);
  return message != ActionKind::RecvB || plan.hands_down(plan.stages[static_cast<std::size_t>(stage.stage) + 1]);
}

bool waits_for_other_stage(const Plan& plan, std::int32_t rank, const GradientEnd& end) {
  if (plan.tying != Tying::Remote || !plan.table_trained) return false;
  const SegmentKind kind = plan.stage_at(rank, end.chunk).segments[static_cast<std::size_t>(end.segment)].kind;
  return kind == SegmentKind::Embedding || kind == SegmentKind::Head;
}

void add_updates(const Plan& plan, std::int32_t rank, Visits& visits) {
  std::vector<GradientEnd> order = gradient_order(plan, rank, visits);
  std::stable_partition(order.begin(), order.end(), [&](const GradientEnd& end) { return !waits_for_other_stage(plan, rank, end); });
  for (const GradientEnd& end : order)
    visits.push_back({VisitKind::Update, Phase::Update, ActionKind::SendF, end.chunk, end.segment, -1, false, false});
}

}  // namespace

Visits make_visits(const Plan& plan, std::int32_t rank) {
  Visits visits;
  Ends ends(plan, rank, visits);
  for (const Action& action : plan.grid[static_cast<std::size_t>(rank)]) {
    ends.before(action);
    const StagePlan& stage = plan.stages[static_cast<std::size_t>(action.stage)];
    if (is_compute(action.kind)) add_segments(stage, action, visits);
    if (is_message(action.kind) && carries(plan, stage, action.kind))
      visits.push_back({VisitKind::Message, Phase::None, action.kind, stage.chunk, -1, action.micro_batch, false, false});
  }
  ends.finish();
  visits.push_back({VisitKind::GradientsDone, Phase::None, ActionKind::SendF, -1, -1, -1, false, false});
  if (plan.scenario->optimizer == OptimizerKind::Adam) add_updates(plan, rank, visits);
  return visits;
}

std::size_t before_updates(const Plan& plan, const Visits& visits) {
  if (plan.scenario->optimizer == OptimizerKind::None) return visits.size();
  const auto is = [](VisitKind kind) { return [kind](const Visit& visit) { return visit.kind == kind; }; };
  auto at = std::find_if(visits.begin(), visits.end(), is(VisitKind::Update));
  if (at == visits.end()) at = std::find_if(visits.begin(), visits.end(), is(VisitKind::GradientsDone));
  return static_cast<std::size_t>(at - visits.begin());
}

}  // namespace steptwin
