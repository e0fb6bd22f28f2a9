#include "exec/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "schedule/base/median.h"

namespace steptwin {
namespace {

constexpr int kRanksOfOneProcess = 1 << 16;  // more than any mesh that one process runs: all of them are one node

std::vector<std::uint32_t> nodes_of(const Machine& machine, const Schedule& schedule) {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t rank = 0; rank < schedule.mesh.size(); ++rank) nodes.push_back(static_cast<std::uint32_t>(machine.node_of(rank)));
  return nodes;
}

Machine one_node(Machine base, const ExecuteOptions& execute) {
  base.devices_per_node = kRanksOfOneProcess;
  base.nodes.reset();
  base.sharing = LinkSharing::None;
  base.measured.reset();
  if (execute.mode == ExecutionMode::Streams && (execute.transport == TransportChoice::Local || execute.partitions > 0)) {
    base.ranks_per_device = kRanksOfOneProcess;
    base.sources["/ranks_per_device"] = "calibration: transport local, all ranks on one GPU";
  }
  base.sources["/devices_per_node"] = "calibration: all ranks run in one process";
  return base;
}

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

double us(Duration duration) { return static_cast<double>(ns(duration)) / 1e3; }

// What serialises the ranks. Those of a GPU do not take turns: they slow each other.
std::pair<int, const char*> slots_of(const ExecuteOptions& execute) {
  switch (execute.mode) {
    case ExecutionMode::Interp: return {1, "interp: one thread does everything"};
    case ExecutionMode::Threads: return {static_cast<int>(execute.compute_slots), "threads: a worker per rank and lane"};
    case ExecutionMode::Streams: break;
  }
  return {0, "streams: the ranks of a GPU run side by side"};
}

void set_slots(Host& host, const ExecuteOptions& execute, const Timing& turnaround, std::map<std::string, std::string>& sources) {
  const bool one_thread = execute.mode == ExecutionMode::Interp;
  const auto [slots, mode] = slots_of(execute);
  host.compute_slots = slots;
  host.slot_scope = one_thread ? SlotScope::Everything : SlotScope::Compute;
  host.turnaround = turnaround.time;
  sources["/host/compute_slots"] = sources["/host/slot_scope"] = mode;
  sources["/host/turnaround_us"] = one_thread
                                       ? fmt::format("measured: median of {} steps {:.1f} us, p10 {:.1f}, p90 {:.1f}", turnaround.samples,
                                                     us(turnaround.median), us(turnaround.p10), us(turnaround.p90))
                                       : "part of what a worker measures";
}

// How much longer the largest copies of each way took while all other ways were busy.
void add_company(MeasuredTables& tables, const MeasuredTables& together) {
  std::map<std::string, std::pair<Bytes, double>> largest;
  for (const MeasuredCopy& busy : together.copies) {
    const auto alone = std::find_if(tables.copies.begin(), tables.copies.end(), [&](const MeasuredCopy& row) {
      return row.from == busy.from && row.to == busy.to && row.cast == busy.cast && row.bytes == busy.bytes;
    });
    if (busy.cast || alone == tables.copies.end() || ns(alone->timing.time) == 0) continue;
    auto& [bytes, ratio] = largest[fmt::format("copies_together_{}_{}", busy.from, busy.to)];
    if (busy.bytes < bytes) continue;
    bytes = busy.bytes, ratio = static_cast<double>(ns(busy.timing.time)) / static_cast<double>(ns(alone->timing.time));
  }
  for (const auto& [name, entry] : largest) tables.facts[name] = std::round(1000 * entry.second) / 1000;
}

void set_kernel_launch(Machine& machine) {
  const auto launch = machine.measured->facts.find("kernel_launch_ns");
  if (launch == machine.measured->facts.end()) return;
  machine.host.kernel_launch = Duration(std::llround(launch->second));
  machine.sources["/host/kernel_launch_us"] = "measured: median host time of a LibTorch op that launches one small kernel";
}

void set_contention(Host& host, const ExecuteOptions& execute, double contention, std::map<std::string, std::string>& sources) {
  host.compute_contention = contention;
  if (execute.mode != ExecutionMode::Streams) {
    sources["/host/compute_contention"] = "ranks take turns";
  } else if (contention > 0) {
    sources["/host/compute_contention"] = "measured: times against how many other ranks computed meanwhile";
  } else {
    sources["/host/compute_contention"] = "not measured: always as many ranks computed at a time";
  }
}

}  // namespace

Calibration::Calibration(Machine base, ExecuteOptions execute, std::vector<CalibrationSubject> subjects)
    : base_(one_node(std::move(base), execute)),
      execute_(std::move(execute)),
      subjects_(std::move(subjects)),
      tabulator_(execute_.mode),
      together_(execute_.mode) {
  for (const CalibrationSubject& subject : subjects_)
    matchings_.push_back(match(subject.schedule, Folding::None, nodes_of(base_, subject.schedule)));
}

Outcome Calibration::run_round(Backend& backend) {
  if (rounds_ == 0)
    for (const RunFact& fact : backend.probe()) facts_[fact.name].push_back(fact.value);
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    const double wall = seconds_of(CLOCK_MONOTONIC), thread = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    const ExecutionResult result = backend.run(subjects_[i].schedule, execute_);
    wall_seconds_ += seconds_of(CLOCK_MONOTONIC) - wall, thread_seconds_ += seconds_of(CLOCK_THREAD_CPUTIME_ID) - thread;
    if (result.trace.outcome.status != Status::Ok) return result.trace.outcome;
    (subjects_[i].together ? together_ : tabulator_).add(subjects_[i].schedule, matchings_[i], result.trace);
    for (const RunFact& fact : result.facts) facts_[fact.name].push_back(fact.value);
  }
  tabulator_.end_round(), together_.end_round();
  ++rounds_;
  return {};
}

std::optional<double> Calibration::processor_share() const {
  if (execute_.mode != ExecutionMode::Interp || wall_seconds_ <= 0) return std::nullopt;
  return std::round(1000 * thread_seconds_ / wall_seconds_) / 1000;
}

Machine Calibration::machine(const std::string& backend) const {
  Machine machine = base_;
  MeasuredTables& tables = machine.measured.emplace();
  tables.backend = backend;
  tables.mode = name_of(execute_.mode);
  tables.rounds = rounds_, tables.steps = execute_.steps, tables.warm_up = execute_.warm_up;
  tables.seed = static_cast<std::int64_t>(execute_.seed);
  tables.clock = execute_.clock == StampClock::ThreadTime ? "thread" : "wall";
  tables.processor_share = processor_share();
  for (const CalibrationSubject& subject : subjects_) tables.sources.push_back({subject.name, subject.sha256});
  tabulator_.fill(tables);
  for (const auto& [name, values] : facts_) tables.facts[name] = median(values);
  MeasuredTables together;
  together_.fill(together);
  add_company(tables, together);
  machine.name += "_measured";
  set_slots(machine.host, execute_, tabulator_.turnaround(), machine.sources);
  set_kernel_launch(machine);
  set_contention(machine.host, execute_, tabulator_.contention(), machine.sources);
  return machine;
}

}  // namespace steptwin
