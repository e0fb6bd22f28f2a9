#include "analysis/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "schedule/base/error.h"
#include "schedule/base/median.h"

namespace steptwin {
namespace {

constexpr double kShortestNs = 50'000;  // below it clock reads and wake-ups are part of what is measured
constexpr std::size_t kWorst = 10;

InputError refusal(const std::string& text, const std::string& help = {}) {
  Diagnostic problem;
  problem.code = "RUN";
  problem.text = text;
  problem.help = help;
  return InputError(std::move(problem));
}

struct RunFacts {
  std::int64_t id = 0;
  std::string kind, status, digest, sim_of_uid;
  std::int64_t steps = 1;
  double step_ns = 0;
};

RunFacts facts_of(const Store& store, std::int64_t id) {
  RunFacts facts;
  facts.id = id;
  store.for_each(
      "SELECT kind, status, coalesce(schedule_digest, ''), coalesce(sim_of_uid, ''), steps, step_time_ns FROM runs WHERE id = ?1",
      {std::to_string(id)}, [&](const Row& row) {
        facts.kind = row.text(0), facts.status = row.text(1), facts.digest = row.text(2), facts.sim_of_uid = row.text(3);
        facts.steps = row.integer(4), facts.step_ns = row.real(5);
      });
  return facts;
}

// The prediction and the execution, checked.
std::pair<RunFacts, RunFacts> pair_of(const Store& store, const std::vector<std::int64_t>& runs) {
  RunFacts a = facts_of(store, runs.front()), b;
  if (runs.size() > 1) {
    b = facts_of(store, runs[1]);
  } else {
    if (a.kind != "exec" || a.sim_of_uid.empty())
      throw refusal(fmt::format("run {} knows no prediction", a.id), "give two runs: a prediction and an execution");
    b = facts_of(store, store.resolve(a.sim_of_uid));
  }
  if (a.kind == "exec") std::swap(a, b);
  if (a.kind != "sim" || b.kind != "exec") throw refusal(fmt::format("runs {} and {} are not a prediction and an execution", a.id, b.id));
  for (const RunFacts& run : {a, b})
    if (run.status != "ok") throw refusal(fmt::format("run {} ended as {}", run.id, run.status));
  if (a.digest != b.digest)
    throw refusal(fmt::format("runs {} and {} are of different schedules", a.id, b.id),
                  "simulate the scenario of the execution, with the same --set");
  return {a, b};
}

// (rank, op or group) -> begin and end in each step.
struct Interval {
  double first = 0, last = 0;
};
struct OpTimesOf {
  ComparedOp op;
  std::map<std::int64_t, Interval> steps;
};
using Key = std::pair<std::int64_t, std::int64_t>;  // rank, op (of a group: -1 - group number)
using OpTable = std::map<Key, OpTimesOf>;

OpTable load_ops(const Store& store, const RunFacts& run, std::int64_t only_step) {
  OpTable table;
  const std::string condition = only_step >= 0 ? " AND step = " + std::to_string(only_step) : "";
  store.for_each("SELECT rank, op, group_no, step, kind, phase, name, stage, start_ns, end_ns FROM spans WHERE run_id = ?1" + condition +
                     " ORDER BY rank, step, op",
                 {std::to_string(run.id)}, [&](const Row& row) {
                   const bool grouped = row.type(2) != Table::Type::Null;
                   OpTimesOf& entry = table[{row.integer(0), grouped ? -1 - row.integer(2) : row.integer(1)}];
                   if (entry.steps.empty()) {
                     entry.op.rank = row.integer(0), entry.op.op = row.integer(1);
                     entry.op.kind = row.text(4), entry.op.phase = row.text(5), entry.op.name = row.text(6);
                     entry.op.stage = row.type(7) == Table::Type::Null ? -1 : row.integer(7);
                   }
                   const auto [place, fresh] = entry.steps.try_emplace(row.integer(3), Interval{row.real(8), row.real(9)});
                   place->second.first = std::min(place->second.first, row.real(8));
                   place->second.last = std::max(place->second.last, row.real(9));
                 });
  return table;
}

double duration(const OpTimesOf& op) {
  std::vector<double> times;
  for (const auto& [step, interval] : op.steps) times.push_back(interval.last - interval.first);
  return median(std::move(times));
}

std::map<std::int64_t, std::int64_t> stand_ins(const Store& store, std::int64_t run) {
  std::map<std::int64_t, std::int64_t> result;
  store.for_each("SELECT rank, stand_in FROM rank_summary WHERE run_id = ?1", {std::to_string(run)},
                 [&](const Row& row) { result[row.integer(0)] = row.integer(1); });
  return result;
}

void join(const Store& store, const RunFacts& sim, const RunFacts& exec, Comparison& result, std::vector<ComparedOp>& ops) {
  const OpTable predicted = load_ops(store, sim, sim.steps - 1), measured = load_ops(store, exec, -1);
  const auto stand_in = stand_ins(store, sim.id);
  std::set<Key> used;
  for (const auto& [key, entry] : measured) {
    const auto who = stand_in.find(key.first);
    const auto found = who == stand_in.end() ? predicted.end() : predicted.find({who->second, key.second});
    if (found == predicted.end()) {
      ++result.unmatched;
      continue;
    }
    used.insert(found->first);
    ++result.matched;
    ComparedOp op = entry.op;
    op.predicted_ns = duration(found->second);
    op.measured_ns = duration(entry);
    ops.push_back(std::move(op));
  }
  result.unmatched += static_cast<std::int64_t>(predicted.size() - used.size());
}

struct OpenGroup {
  ComparedGroup group;
  std::vector<double> errors;
};

void add(OpenGroup& open, const ComparedOp& op) {
  ++open.group.ops;
  open.group.predicted_ns += op.predicted_ns;
  open.group.measured_ns += op.measured_ns;
  if (op.measured_ns > 0) open.errors.push_back(std::fabs(op.error()));
}

ComparedGroup finished(const std::string& name, OpenGroup open) {
  open.group.name = name;
  for (const double error : open.errors) open.group.mean_absolute_error += error / static_cast<double>(open.errors.size());
  open.group.median_error = median(std::move(open.errors));
  return open.group;
}

std::vector<ComparedGroup> finished(std::map<std::string, OpenGroup> groups) {
  std::vector<ComparedGroup> result;
  for (auto& [name, group] : groups) {
    result.push_back(finished(name, std::move(group)));
  }
  return result;
}

void judge_ops(std::vector<ComparedOp> ops, Comparison& result) {
  std::map<std::string, OpenGroup> kinds, ranks, stages;
  OpenGroup apart;
  std::vector<double> errors;
  for (const ComparedOp& op : ops) {
    if (op.measured_ns <= kShortestNs || op.kind == "copy" || op.kind == "host_wait") {
      add(apart, op);
      continue;
    }
    errors.push_back(std::fabs(op.error()));
    result.op_error_signed_mean += op.error();
    add(kinds[op.phase.empty() ? op.kind : op.kind + " " + op.phase], op);
    add(ranks[fmt::format("rank {:4}", op.rank)], op);
    if (op.stage >= 0) add(stages[fmt::format("stage {:3}", op.stage)], op);
  }
  result.apart = finished({}, std::move(apart));
  result.op_error_median = median(errors);
  for (const double error : errors) result.op_error_mean += error;
  if (!errors.empty())
    result.op_error_mean /= static_cast<double>(errors.size()), result.op_error_signed_mean /= static_cast<double>(errors.size());
  result.kinds = finished(std::move(kinds));
  result.ranks = finished(std::move(ranks));
  result.stages = finished(std::move(stages));
  std::erase_if(ops, [](const ComparedOp& op) { return op.measured_ns <= kShortestNs || op.kind == "copy" || op.kind == "host_wait"; });
  std::sort(ops.begin(), ops.end(), [](const ComparedOp& a, const ComparedOp& b) {
    return std::fabs(a.predicted_ns - a.measured_ns) > std::fabs(b.predicted_ns - b.measured_ns);
  });
  ops.resize(std::min(ops.size(), kWorst));
  result.worst = std::move(ops);
}

void judge_steps(const Store& store, const RunFacts& sim, const RunFacts& exec, Comparison& result) {
  result.predicted_step_ns = sim.step_ns;
  std::vector<double> steps;
  double before = 0;
  store.for_each("SELECT min(start_ns), max(end_ns) FROM spans WHERE run_id = ?1 GROUP BY step ORDER BY step", {std::to_string(exec.id)},
                 [&](const Row& row) {
                   if (steps.empty()) before = row.real(0);
                   steps.push_back(row.real(1) - before);
                   before = row.real(1);
                 });
  result.measured_step_ns = median(steps);
  if (steps.empty() || result.measured_step_ns <= 0) return;
  const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
  result.step_spread = (*most - *least) / result.measured_step_ns;
}

void judge_peaks(const Store& store, const RunFacts& sim, const RunFacts& exec, Comparison& result) {
  store.for_each(
      "SELECT m.rank, m.curve, p.bytes, m.bytes, coalesce(p.op_name, ''), coalesce(m.op_name, '') FROM memory_peak m "
      "JOIN memory_peak p ON p.run_id = ?1 AND p.rank = m.rank AND p.space = m.space AND p.curve = m.curve "
      "WHERE m.run_id = ?2 AND m.space = 'device' AND m.curve IN ('allocated', 'reserved') ORDER BY m.curve, m.rank",
      {std::to_string(sim.id), std::to_string(exec.id)}, [&](const Row& row) {
        ComparedPeak peak{row.integer(0), std::string(row.text(1)), row.integer(2), row.integer(3), std::string(row.text(4)),
                          std::string(row.text(5))};
        result.peaks.push_back(std::move(peak));
      });
  for (const ComparedPeak& peak : result.peaks)
    if (peak.curve == "allocated" && std::fabs(peak.error()) > std::fabs(result.peak_memory_error)) result.peak_memory_error = peak.error();
  store.for_each(
      "SELECT name, value FROM metrics WHERE run_id = ?1 AND rank IS NULL AND name IN ('workspace_peak_bytes', 'buffers_reserved_bytes', "
      "'temporaries_reserved_bytes', 'context_and_libraries_bytes') ORDER BY name",
      {std::to_string(exec.id)},
      [&](const Row& row) { result.beside.emplace_back(row.text(0), static_cast<std::int64_t>(row.real(1))); });
}

}  // namespace

Comparison compare_runs(const Store& store, const std::vector<std::int64_t>& runs) {
  const auto [sim, exec] = pair_of(store, runs);
  Comparison result;
  result.sim_run = sim.id, result.exec_run = exec.id;
  std::vector<ComparedOp> ops;
  join(store, sim, exec, result, ops);
  judge_ops(std::move(ops), result);
  judge_steps(store, sim, exec, result);
  judge_peaks(store, sim, exec, result);
  return result;
}

}  // namespace steptwin
