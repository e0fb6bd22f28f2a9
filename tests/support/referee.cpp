#include "tests/support/referee.h"

#include "schedule/ir/text.h"

namespace steptwin::test {
namespace {

std::string times_text(std::int64_t issue, std::int64_t ready, std::int64_t start, std::int64_t end) {
  std::string text;
  for (const std::int64_t t : {issue, ready, start, end}) text += (text.empty() ? "" : "/") + std::to_string(t);
  return text;
}

}  // namespace

SlowResult referee(const Schedule& schedule, std::int64_t launch, const SharedLimits& limits) {
  SlowCosts costs;
  costs.duration = [&schedule](RankId, OpId op) { return ns(schedule.ops[op.value].given); };
  costs.launch = [launch](RankId, OpId) { return launch; };
  costs.fair_links = limits.fair_links;
  costs.compute_slots = limits.compute_slots;
  costs.capacity = limits.capacity;
  costs.slots_for_everything = limits.slots_for_everything;
  costs.turnaround = limits.turnaround;
  costs.contention = limits.contention;
  return slow_simulate(schedule, costs);
}

std::string difference(const Schedule& schedule, const Trace& trace, const SlowResult& slow) {
  const bool finished = trace.outcome.status == Status::Ok;
  if (finished != slow.finished) return finished ? "the engine finished, the referee did not" : "the referee finished, the engine did not";
  std::size_t ended = 0;
  for (const auto& [key, t] : slow.times) ended += t.end >= 0 ? 1 : 0;
  if (ended != trace.spans.size()) return "spans " + std::to_string(trace.spans.size()) + ", referee " + std::to_string(ended);
  for (const Span& span : trace.spans) {
    const auto found = slow.times.find({span.rank.value, span.op.value});
    if (found == slow.times.end()) return "the referee knows no op " + std::to_string(span.op.value);
    const SlowTimes& t = found->second;
    const std::string engine = times_text(ns(span.issue), ns(span.ready), ns(span.start), ns(span.end));
    const std::string expected = times_text(t.issue, t.ready, t.start, t.end);
    if (engine == expected) continue;
    return "rank " + std::to_string(span.rank.value) + " `" + print_op(schedule, span.op) + "` engine " + engine + " referee " + expected;
  }
  return "";
}

}  // namespace steptwin::test
