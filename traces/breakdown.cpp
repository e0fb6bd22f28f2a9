#include "traces/breakdown.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace steptwin {
namespace {

enum Class : std::uint8_t { kCompute, kLaneBusy, kCommunication, kOther, kHostWait, kUnissued, kClasses };

// A condition begins (+1) or ends (-1) to hold at an instant.
struct Edge {
  std::int64_t at;
  Class kind;
  std::int8_t change;
};

bool is_work_phase(Phase phase) {
  switch (phase) {
    case Phase::Forward:
    case Phase::Backward:
    case Phase::InputGrad:
    case Phase::WeightGrad:
    case Phase::Recompute:
      return true;
    case Phase::None:
    case Phase::Update:
      return false;
  }
  return false;
}

class Classifier {
 public:
  Classifier(const Schedule& schedule, std::span<const Span> spans, SimTime origin, Duration step)
      : schedule_(schedule), spans_(spans), origin_(ns(origin)), step_(ns(step)), program_(schedule.program_of(spans.front().op)) {
    lane_end_.assign(program_.lanes.size(), origin_);
    edges_.reserve(spans.size() * 2 + 16);
  }

  RankBreakdown run(RankId rank) {
    RankBreakdown result;
    result.rank = rank;
    for (const Span& span : spans_) visit(span, result);
    if (last_work_end_) result.rank_span = Duration(*last_work_end_ - first_forward_.value_or(*first_work_));
    sweep(result);
    return result;
  }

 private:
  void visit(const Span& span, RankBreakdown& result) {
    const Op& op = schedule_.ops[span.op.value];
    if (std::holds_alternative<HostWait>(op.body)) return add(kHostWait, ns(span.start), ns(span.end));
    const bool on_compute_lane = program_.lanes[op.lane.value].engine == Engine::Compute;
    if (on_compute_lane && std::holds_alternative<Compute>(op.body)) add(kUnissued, unblocked_at(span, op), ns(span.ready));
    lane_end_[op.lane.value] = std::max(lane_end_[op.lane.value], ns(span.end));
    if (is_model_work(schedule_, program_, op)) {
      add(kCompute, ns(span.start), ns(span.end));
      note_work(span, op, result);
    } else {
      const bool communicates = comm_of(op.body).valid();
      const bool busy = on_compute_lane && std::holds_alternative<Compute>(op.body);
      add(communicates ? kCommunication : busy ? kLaneBusy : kOther, ns(span.start), ns(span.end));
    }
  }

  void note_work(const Span& span, const Op& op, RankBreakdown& result) {
    result.work += span.end - span.start;
    if (!first_work_) first_work_ = ns(span.start);
    if (!first_forward_ && op.label.phase == Phase::Forward) first_forward_ = ns(span.start);
    last_work_end_ = std::max(last_work_end_.value_or(ns(span.end)), ns(span.end));
  }

  // When the op could have been ready had the host issued it at once: its lane and its dependencies have ended.
  std::int64_t unblocked_at(const Span& span, const Op& op) const {
    std::int64_t at = lane_end_[op.lane.value];
    for (const OpId dep : schedule_.deps_of(span.op)) at = std::max(at, end_for_dependents(dep));
    return at;
  }

  // A member of a group ends, for its dependents, when the last member ends. Groups are runs of consecutive ops.
  std::int64_t end_for_dependents(OpId op) const {
    const auto it = std::lower_bound(guess(op), spans_.end(), op, [](const Span& s, OpId id) { return s.op < id; });
    if (it == spans_.end() || it->op != op) return origin_;
    const GroupId group = schedule_.ops[op.value].group;
    std::int64_t end = ns(it->end);
    if (!group.valid()) return end;
    const auto same_group = [&](const Span& s) { return schedule_.ops[s.op.value].group == group; };
    for (auto next = it; next != spans_.end() && same_group(*next); ++next) end = std::max(end, ns(next->end));
    for (auto before = it; before != spans_.begin() && same_group(*std::prev(before)); --before)
      end = std::max(end, ns(std::prev(before)->end));
    return end;
  }

  // Spans are usually complete: the one of an op then lies at its distance from the first.
  std::span<const Span>::iterator guess(OpId op) const {
    const std::size_t index = op.value - spans_.front().op.value;
    return index < spans_.size() && spans_[index].op == op ? spans_.begin() + static_cast<std::ptrdiff_t>(index) : spans_.begin();
  }

  void add(Class kind, std::int64_t from, std::int64_t to) {
    from = std::max(from - origin_, std::int64_t{0});
    to = std::min(to - origin_, step_);
    if (from >= to) return;
    edges_.push_back({from, kind, +1});
    edges_.push_back({to, kind, -1});
  }

  void sweep(RankBreakdown& result) {
    std::sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
    std::array<int, kClasses> active{};
    std::int64_t now = 0;
    for (const Edge& edge : edges_) {
      class_of(active, result) += Duration(edge.at - now);
      now = edge.at;
      active[edge.kind] += edge.change;
    }
    class_of(active, result) += Duration(step_ - now);
  }

  static Duration& class_of(const std::array<int, kClasses>& active, RankBreakdown& result) {
    if (active[kCompute] > 0) return result.compute;
    if (active[kLaneBusy] > 0) return result.other;
    if (active[kCommunication] > 0) return result.exposed_communication;
    if (active[kOther] > 0 || (active[kUnissued] > 0 && active[kHostWait] == 0)) return result.other;
    return result.bubble;
  }

  const Schedule& schedule_;
  std::span<const Span> spans_;
  std::int64_t origin_, step_;
  const Program& program_;
  std::vector<std::int64_t> lane_end_;  // [lane] end of the latest op seen
  std::vector<Edge> edges_;
  std::optional<std::int64_t> first_work_, first_forward_, last_work_end_;
};

}  // namespace

bool is_model_work(const Schedule& schedule, const Program& program, const Op& op) {
  const auto* compute = std::get_if<Compute>(&op.body);
  if (compute == nullptr || program.lanes[op.lane.value].engine != Engine::Compute) return false;
  if (op.label.phase != Phase::None) return is_work_phase(op.label.phase);
  const auto parts = schedule.parts_of(*compute);
  return std::any_of(parts.begin(), parts.end(), [](const ComputePart& part) { return is_work_phase(part.phase); });
}

RankBreakdown break_down(const Schedule& schedule, RankId rank, std::span<const Span> spans, SimTime origin, Duration step) {
  if (spans.empty()) {
    RankBreakdown idle;
    idle.rank = rank;
    idle.bubble = step;
    return idle;
  }
  return Classifier(schedule, spans, origin, step).run(rank);
}

}  // namespace steptwin
