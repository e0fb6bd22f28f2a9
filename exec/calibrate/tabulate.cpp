#include "exec/calibrate/tabulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "schedule/ir/op_key.h"

namespace steptwin {
namespace {

// An op is issued in a few microseconds; after a longer silence the issuing thread has waited for work or for the processor.
constexpr std::int64_t kWait = 50'000;  // ns

// How many ranks compute at a time.
class Crowd {
 public:
  Crowd(const Schedule& schedule, const Matching& matching, const std::vector<WorkItem>& items) : busy_(matching.ranks.size()) {
    for (const WorkItem& item : items) {  // ascending by end
      const ProgramTables& tables = matching.tables[matching.ranks[item.rank].tables];
      const std::uint32_t first = schedule.programs[tables.program.value].first_op.value;
      if (!std::holds_alternative<Compute>(schedule.ops[first + item.op].body)) continue;
      std::vector<Busy>& busy = busy_[item.rank];
      const std::int64_t before = busy.empty() ? 0 : busy.back().until_end;
      const std::int64_t begin = busy.empty() ? item.begin : std::max(item.begin, busy.back().end);
      if (begin < item.end) busy.push_back({begin, item.end, before + item.end - begin});
    }
  }

  // Of the other ranks, on average over the item.
  double others(const WorkItem& item) const {
    std::int64_t sum = 0;
    for (std::uint32_t rank = 0; rank < busy_.size(); ++rank)
      if (rank != item.rank) sum += busy_until(rank, item.end) - busy_until(rank, item.begin);
    return static_cast<double>(sum) / static_cast<double>(item.end - item.begin);
  }

 private:
  struct Busy {
    std::int64_t begin, end, until_end;  // until_end: time computed since the start of the run
  };
  std::int64_t busy_until(std::uint32_t rank, std::int64_t time) const {
    const std::vector<Busy>& busy = busy_[rank];
    const auto next = std::upper_bound(busy.begin(), busy.end(), time, [](std::int64_t t, const Busy& b) { return t < b.begin; });
    if (next == busy.begin()) return 0;
    const Busy& last = *(next - 1);
    return last.until_end - std::max<std::int64_t>(0, last.end - time);
  }
  std::vector<std::vector<Busy>> busy_;  // [rank] ascending
};

template <class Row>
std::vector<Row> finished(const std::map<std::string, std::pair<Row, Rounds>>& samples) {
  std::vector<Row> rows;
  for (const auto& [key, entry] : samples) {
    rows.push_back(entry.first);
    rows.back().timing = timing_of(entry.second);
  }
  return rows;
}

}  // namespace

template <class Sample>
std::vector<Sample>& Tabulator::of_round(std::vector<std::vector<Sample>>& rounds) const {
  if (rounds.size() <= round_) rounds.resize(round_ + 1);
  return rounds[round_];
}

template <class Row>
void Tabulator::sample(Samples<Row>& samples, const std::string& key, Row row, std::int64_t time) {
  const auto [entry, fresh] = samples.try_emplace(key);
  if (fresh) entry->second.first = std::move(row);
  of_round(entry->second.second).push_back(time);
}

void Tabulator::add(const Schedule& schedule, const Matching& matching, const Trace& trace) {
  const std::vector<WorkItem> items = timeline(matching, trace, mode_);
  const Crowd crowd(schedule, matching, items);
  for (const WorkItem& item : items) add_item(schedule, matching, item, mode_ == ExecutionMode::Streams ? crowd.others(item) : 0);
  add_issue(schedule, trace, items);
  if (mode_ == ExecutionMode::Interp) add_turnaround(items);
}

void Tabulator::add_item(const Schedule& schedule, const Matching& matching, const WorkItem& item, double others) {
  const SimRank& rank = matching.ranks[item.rank];
  const ProgramTables& tables = matching.tables[rank.tables];
  const Program& program = schedule.programs[tables.program.value];
  const std::int64_t time = std::max<std::int64_t>(1, (item.end - item.begin) / item.count);
  for (std::uint32_t local = item.op; local < item.op + item.count; ++local) {
    const OpId id(program.first_op.value + local);
    const Op& op = schedule.ops[id.value];
    if (op.given >= Duration(0)) continue;
    if (comm_of(op.body).valid()) {
      add_transfer(op, rank.counterparts[tables.nodes[local].channel].shape, time);
    } else if (std::holds_alternative<Copy>(op.body)) {
      add_copy(schedule, program, id, time);
    } else {
      add_compute(schedule, program, op, {time, others});
    }
  }
}

void Tabulator::add_compute(const Schedule& schedule, const Program& program, const Op& op, CrowdedSample sample) {
  const auto& compute = std::get<Compute>(op.body);
  if (compute.part_count != 1) return;
  const ComputePart& part = schedule.parts_of(compute).front();
  MeasuredCompute row;
  row.segment = schedule.name(part.segment);
  row.phase = name_of(part.phase);
  row.engine = name_of(program.lanes[op.lane.value].engine);
  if (part.work.valid()) {
    const Work& work = schedule.works[part.work.value];
    row.kernels = kernel_texts(work), row.flops = work.flops(), row.bytes = work.bytes();
  }
  std::string key = fmt::format("{}|{}|{}|{:020}", row.segment, row.phase, row.engine, row.flops.value);
  for (const std::string& kernel : row.kernels) key += "|" + kernel;
  const auto [entry, fresh] = compute_.try_emplace(key);
  if (fresh) entry->second.first = std::move(row);
  of_round(entry->second.second).push_back(sample);
}

double Tabulator::contention() const {
  std::vector<const CrowdedRounds*> kinds;
  for (const auto& [key, entry] : compute_) kinds.push_back(&entry.second);
  return mode_ == ExecutionMode::Streams ? contention_of(kinds) : 0;
}

void Tabulator::add_transfer(const Op& op, const CommShape& shape, std::int64_t time) {
  MeasuredTransfer row;
  row.kind = transfer_kind(op.body);
  row.members = shape.members, row.nodes = shape.nodes, row.members_per_node = shape.members_per_node;
  row.dtype = calculated_type(op.body);
  row.bytes = bytes_of(op.body);
  const std::string key = fmt::format("{}|{:08}|{:08}|{:08}|{}|{:020}", row.kind, row.members, row.nodes, row.members_per_node,
                                      row.dtype ? name_of(*row.dtype) : "", row.bytes.value);
  sample(transfers_, key, std::move(row), time);
}

void Tabulator::add_copy(const Schedule& schedule, const Program& program, OpId op, std::int64_t time) {
  const CopyPath path = copy_path(schedule, program, op);
  MeasuredCopy row;
  row.from = name_of(path.from), row.to = name_of(path.to);
  row.cast = cast_of(std::get<Copy>(schedule.ops[op.value].body));
  row.bytes = path.read;
  const std::string cast = row.cast ? fmt::format("{}-{}", name_of(row.cast->first), name_of(row.cast->second)) : "";
  sample(copies_, fmt::format("{}|{}|{}|{:020}", row.from, row.to, cast, row.bytes.value), row, time);
}

// Issue stamps in order of time, of all ranks (one issuing thread) or, with streams, rank by rank. Members of a group share a stamp and cost
// nothing more.
void Tabulator::add_issue(const Schedule& schedule, const Trace& trace, const std::vector<WorkItem>& items) {
  const bool by_rank = mode_ == ExecutionMode::Streams;
  std::vector<std::tuple<std::uint32_t, std::int64_t, std::uint32_t>> stamps;  // thread, time, op
  for (const Span& span : trace.spans)
    if (!std::holds_alternative<HostWait>(schedule.ops[span.op.value].body))
      stamps.emplace_back(by_rank ? span.rank.value : 0, ns(span.issue), span.op.value);
  std::sort(stamps.begin(), stamps.end());
  std::size_t item = 0;
  for (std::size_t i = 1; i < stamps.size(); ++i) {
    const auto& [thread, now, op] = stamps[i];
    const std::int64_t before = std::get<1>(stamps[i - 1]);
    if (std::get<0>(stamps[i - 1]) != thread) continue;
    while (item < items.size() && items[item].end <= before) ++item;
    const bool worked = mode_ == ExecutionMode::Interp && item < items.size() && items[item].begin < now;
    if (now == before || worked || now - before > kWait) continue;
    if (by_rank && std::holds_alternative<Compute>(schedule.ops[op].body)) continue;
    const std::string kind = kind_name(schedule.ops[op].body);
    sample(issue_, kind, MeasuredIssue{kind, {}}, now - before);
  }
}

// The first measured step is left out where there are more: what its first items waited for belongs to the warm-up.
void Tabulator::add_turnaround(const std::vector<WorkItem>& items) {
  struct Sum {
    std::int64_t idle = 0, works = 0;
  };
  std::map<std::uint32_t, Sum> steps;
  for (const WorkItem& item : items) {
    steps[item.step].idle += item.idle;
    steps[item.step].works += item.local ? 1 : 0;
  }
  for (const auto& [step, sum] : steps)
    if (sum.works > 0 && (step > 0 || steps.size() == 1)) of_round(turnaround_).push_back(sum.idle / sum.works);
}

void Tabulator::fill(MeasuredTables& tables) const {
  const double c = contention();
  for (const auto& [key, entry] : compute_) {
    tables.compute.push_back(entry.first);
    tables.compute.back().timing = timing_of(times_alone(entry.second, c));
  }
  tables.transfers = finished(transfers_);
  tables.copies = finished(copies_);
  tables.issue = finished(issue_);
}

}  // namespace steptwin
