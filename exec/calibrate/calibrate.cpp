#include "exec/calibrate/calibrate.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <utility>

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
    : base_(one_node(std::move(base), execute)), execute_(std::move(execute)), subjects_(std::move(subjects)), tabulator_(execute_.mode) {
  for (const CalibrationSubject& subject : subjects_)
    matchings_.push_back(match(subject.schedule, Folding::None, nodes_of(base_, subject.schedule)));
}

Outcome Calibration::run_round(Backend& backend) {
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    const double wall = seconds_of(CLOCK_MONOTONIC), thread = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    const ExecutionResult result = backend.run(subjects_[i].schedule, execute_);
    wall_seconds_ += seconds_of(CLOCK_MONOTONIC) - wall, thread_seconds_ += seconds_of(CLOCK_THREAD_CPUTIME_ID) - thread;
    if (result.trace.outcome.status != Status::Ok) return result.trace.outcome;
    tabulator_.add(subjects_[i].schedule, matchings_[i], result.trace);
  }
  tabulator_.end_round();
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
  machine.name += "_measured";
  set_slots(machine.host, execute_, tabulator_.turnaround(), machine.sources);
  set_contention(machine.host, execute_, tabulator_.contention(), machine.sources);
  return machine;
}

}  // namespace steptwin
