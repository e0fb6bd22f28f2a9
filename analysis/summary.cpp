#include "analysis/summary.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "traces/op_name.h"

namespace steptwin {
namespace {

constexpr std::array kAllCurves = {Curve::Allocated, Curve::Active, Curve::Reserved, Curve::Live};

std::size_t index(Curve curve) { return static_cast<std::size_t>(curve); }
double as_double(Duration d) { return static_cast<double>(ns(d)); }

RankId stand_in_of(const Trace& trace, RankId rank) {
  const bool mapped = rank.value < trace.stand_in.size() && trace.stand_in[rank.value].valid();
  return mapped ? trace.stand_in[rank.value] : rank;
}

void add_breakdown(RankRow& row, const RankBreakdown& from) {
  row.compute = from.compute;
  row.exposed_communication = from.exposed_communication;
  row.bubble = from.bubble;
  row.other = from.other;
  row.work = from.work;
  row.rank_span = from.rank_span;
}

std::vector<RankRow> rank_rows(const Schedule& schedule, const Trace& trace) {
  std::map<RankId, const RankBreakdown*> breakdowns;
  std::map<RankId, std::array<Bytes, kCurves>> peaks;
  for (const RankBreakdown& b : trace.breakdowns) breakdowns[b.rank] = &b;
  for (const MemoryPeak& p : trace.peaks)
    if (p.space == Space::Device) peaks[p.rank][index(p.curve)] = p.bytes;
  const auto program_of = schedule.program_of_rank();
  std::vector<RankRow> rows(program_of.size());
  for (std::uint32_t r = 0; r < rows.size(); ++r) {
    RankRow& row = rows[r];
    row.rank = RankId(r);
    row.stand_in = stand_in_of(trace, row.rank);
    if (program_of[r].valid()) {
      const Program& program = schedule.programs[program_of[r].value];
      row.program = program.name;
      if (!program.stages.empty()) row.stage = program.stages[0];
    }
    if (const auto found = breakdowns.find(row.stand_in); found != breakdowns.end()) add_breakdown(row, *found->second);
    if (const auto found = peaks.find(row.stand_in); found != peaks.end()) row.device_peak = found->second;
  }
  return rows;
}

using CategoryList = std::vector<std::pair<std::string, Bytes>>;

void largest_first(CategoryList& list) {
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return a.second != b.second ? a.second > b.second : a.first < b.first; });
}

CategoryList categories_of(const MemoryPeak& peak) {
  CategoryList list;
  for (std::size_t c = 0; c < kCategories; ++c)
    if (peak.by_category[c].value != 0) list.emplace_back(name_of(static_cast<Category>(c)), peak.by_category[c]);
  largest_first(list);
  return list;
}

std::vector<RunPeak> run_peaks(const Schedule& schedule, const Trace& trace) {
  std::vector<RunPeak> result;
  for (const Curve curve : kAllCurves) {
    const MemoryPeak* best = nullptr;
    for (const MemoryPeak& p : trace.peaks) {
      if (p.curve != curve || p.space != Space::Device) continue;
      if (best == nullptr || p.bytes > best->bytes || (p.bytes == best->bytes && p.rank < best->rank)) best = &p;
    }
    if (best == nullptr) continue;
    const std::string op_name = best->op.valid() ? short_name(schedule, schedule.ops[best->op.value]) : "";
    result.push_back({curve, best->rank, best->bytes, best->at, best->op, op_name, categories_of(*best)});
  }
  return result;
}

std::optional<double> ratio(double numerator, double denominator) {
  if (!(denominator > 0)) return std::nullopt;
  return numerator / denominator;
}

std::optional<double> bubble_rate(const std::vector<RankRow>& rows, Duration measure) {
  if (measure.count() <= 0 || rows.empty()) return std::nullopt;
  const double work =
      std::accumulate(rows.begin(), rows.end(), 0.0, [](double sum, const RankRow& row) { return sum + as_double(row.work); });
  return 1.0 - work / static_cast<double>(rows.size()) / as_double(measure);
}

std::optional<double> bubble_fraction(const std::vector<RankRow>& rows, Duration step) {
  if (step.count() <= 0 || rows.empty()) return std::nullopt;
  const double sum = std::accumulate(rows.begin(), rows.end(), 0.0, [](double s, const RankRow& row) { return s + as_double(row.bubble); });
  return sum / static_cast<double>(rows.size()) / as_double(step);
}

// Where nobody computes, nobody idles between computations: a checkpoint save, messages alone.
bool works(const RankRow& row) { return row.work > Duration(0); }

// Ranks that issue nothing (in no program) have no bubble either.
std::vector<RankRow> working_ranks(const std::vector<RankRow>& rows) {
  std::vector<RankRow> working;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(working), [](const RankRow& row) { return !row.program.empty(); });
  return working;
}

void add_rates(RunSummary& s, const StepFacts& facts) {
  s.bubble_theory = facts.bubble_theory;
  if (s.status != name_of(Status::Ok) && s.status != name_of(Status::OutOfMemory)) return;  // no whole step ran
  const std::vector<RankRow> rows = working_ranks(s.ranks);
  const double seconds = as_double(s.step_time) / 1e9;
  if (std::any_of(rows.begin(), rows.end(), works)) {
    s.bubble_fraction = bubble_fraction(rows, s.step_time);
    s.bubble_rate_makespan = bubble_rate(rows, facts.steps > 1 ? s.step_time : s.makespan);
    s.bubble_rate_span = bubble_rate(rows, s.largest_rank_span);
  }
  if (facts.model_flops > 0) s.mfu = ratio(facts.model_flops, seconds * static_cast<double>(rows.size()) * facts.peak_flops_per_rank);
  if (facts.tokens > 0) s.tokens_per_second = ratio(facts.tokens, seconds);
}

std::string peak_name(Curve curve) { return std::string("peak_") + name_of(curve) + "_bytes"; }

struct Rate {
  const char* name;
  const char* unit;
  std::optional<double> RunSummary::*value;
};
constexpr std::array kRates = {
    Rate{"bubble_fraction", "1", &RunSummary::bubble_fraction},
    Rate{"bubble_rate_makespan", "1", &RunSummary::bubble_rate_makespan},
    Rate{"bubble_rate_span", "1", &RunSummary::bubble_rate_span},
    Rate{"bubble_theory", "1", &RunSummary::bubble_theory},
    Rate{"mfu", "1", &RunSummary::mfu},
    Rate{"tokens_per_second", "1/s", &RunSummary::tokens_per_second},
};

RankId rank_at(const Row& row, int column) {
  return row.type(column) == Table::Type::Null ? RankId() : RankId(static_cast<std::uint32_t>(row.integer(column)));
}

std::optional<Curve> curve_named(std::string_view name) {
  for (const Curve curve : kAllCurves)
    if (name == name_of(curve)) return curve;
  return std::nullopt;
}

void load_run(const Store& store, const std::string& id, RunSummary& s) {
  store.for_each(
      "SELECT status, engine, coalesce(schedule_digest, ''), coalesce(trace_digest, ''), ops, step_time_ns, makespan_ns, "
      "largest_rank_span_ns FROM runs WHERE id = ?1",
      {id}, [&](const Row& row) {
        s.status = row.text(0);
        s.engine = row.text(1);
        s.schedule_digest = row.text(2);
        s.trace_digest = row.text(3);
        s.ops = row.integer(4);
        s.step_time = Duration(row.integer(5));
        s.makespan = Duration(row.integer(6));
        s.largest_rank_span = Duration(row.integer(7));
      });
}

void load_rates(const Store& store, const std::string& id, RunSummary& s) {
  store.for_each("SELECT name, value FROM metrics WHERE run_id = ?1 AND rank IS NULL", {id}, [&](const Row& row) {
    for (const Rate& rate : kRates)
      if (row.text(0) == rate.name) s.*rate.value = row.real(1);
  });
}

void load_ranks(const Store& store, const std::string& id, RunSummary& s) {
  store.for_each(
      "SELECT rank, stand_in, coalesce(program, ''), coalesce(stage, -1), compute_ns, exposed_communication_ns, bubble_ns, other_ns, "
      "work_ns, rank_span_ns FROM rank_summary WHERE run_id = ?1 ORDER BY rank",
      {id}, [&](const Row& row) {
        RankRow& to = s.ranks.emplace_back();
        to.rank = rank_at(row, 0);
        to.stand_in = rank_at(row, 1);
        to.program = row.text(2);
        to.stage = static_cast<std::int32_t>(row.integer(3));
        Duration* const fields[] = {&to.compute, &to.exposed_communication, &to.bubble, &to.other, &to.work, &to.rank_span};
        for (int i = 0; i < 6; ++i) *fields[i] = Duration(row.integer(4 + i));
      });
  store.for_each("SELECT rank, curve, bytes FROM memory_peak WHERE run_id = ?1 AND space = 'device'", {id}, [&](const Row& row) {
    const auto rank = static_cast<std::size_t>(row.integer(0));
    const auto curve = curve_named(row.text(1));
    if (curve && rank < s.ranks.size()) s.ranks[rank].device_peak[index(*curve)] = Bytes(row.integer(2));
  });
}

void load_peak(const Store& store, const std::string& id, Curve curve, RunSummary& s) {
  RunPeak peak;
  peak.curve = curve;
  store.for_each(
      "SELECT rank, bytes, at_ns, op, coalesce(op_name, '') FROM memory_peak WHERE run_id = ?1 AND space = 'device' AND curve = ?2 "
      "ORDER BY bytes DESC, rank LIMIT 1",
      {id, name_of(curve)}, [&](const Row& row) {
        peak.rank = rank_at(row, 0);
        peak.bytes = Bytes(row.integer(1));
        peak.at = at_ns(row.integer(2));
        if (row.type(3) != Table::Type::Null) peak.op = OpId(static_cast<std::uint32_t>(row.integer(3)));
        peak.op_name = row.text(4);
      });
  if (!peak.rank.valid()) return;
  store.for_each(
      "SELECT category, bytes FROM memory_peak_category WHERE run_id = ?1 AND rank = ?2 AND space = 'device' AND curve = ?3 "
      "ORDER BY bytes DESC, category",
      {id, std::to_string(peak.rank.value), name_of(curve)},
      [&](const Row& row) { peak.categories.emplace_back(row.text(0), Bytes(row.integer(1))); });
  s.peaks.push_back(std::move(peak));
}

}  // namespace

const RunPeak* RunSummary::peak(Curve curve) const {
  for (const RunPeak& p : peaks)
    if (p.curve == curve) return &p;
  return nullptr;
}

RunSummary summarize(const Schedule& schedule, const std::string& schedule_digest, const Trace& trace, const StepFacts& facts) {
  RunSummary s;
  s.status = name_of(trace.outcome.status);
  s.engine = trace.engine;
  s.schedule_digest = schedule_digest;
  s.trace_digest = trace.digest();
  s.ops = static_cast<std::int64_t>(trace.op_count);
  s.step_time = trace.step_time;
  s.makespan = trace.makespan;
  s.largest_rank_span = trace.largest_rank_span;
  s.peaks = run_peaks(schedule, trace);
  s.ranks = rank_rows(schedule, trace);
  add_rates(s, facts);
  return s;
}

std::vector<Metric> metrics_of(const RunSummary& s) {
  std::vector<Metric> metrics = {{"step_time_ns", "ns", as_double(s.step_time), {}},
                                 {"makespan_ns", "ns", as_double(s.makespan), {}},
                                 {"largest_rank_span_ns", "ns", as_double(s.largest_rank_span), {}}};
  for (const Rate& rate : kRates)
    if (const auto value = s.*rate.value) metrics.push_back({rate.name, rate.unit, *value, {}});
  for (const RunPeak& peak : s.peaks) metrics.push_back({peak_name(peak.curve), "B", static_cast<double>(peak.bytes.value), {}});
  return metrics;
}

RunSummary load_summary(const Store& store, std::int64_t run_id) {
  RunSummary s;
  const std::string id = std::to_string(run_id);
  load_run(store, id, s);
  load_rates(store, id, s);
  load_ranks(store, id, s);
  for (const Curve curve : kAllCurves) load_peak(store, id, curve, s);
  return s;
}

}  // namespace steptwin
