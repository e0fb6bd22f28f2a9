#include "sim/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>

#include "schedule/ir/text.h"
#include "schedule/ir/times_buffer.h"
#include "schedule/ir/verify.h"
#include "sim/shared_memory.h"
#include "sim/memory_plans.h"
#include "sim/out_of_memory.h"
#include "sim/pricing.h"
#include "sim/rules.h"
#include "sim/time_range.h"
#include "traces/breakdown.h"

namespace steptwin {
namespace {

double gib(Bytes bytes) { return static_cast<double>(bytes.value) / (1024.0 * 1024.0 * 1024.0); }

std::vector<std::uint32_t> nodes_of_ranks(const Schedule& schedule, const Machine* machine) {
  std::vector<std::uint32_t> out;
  if (machine == nullptr) return out;
  for (std::uint32_t r = 0; r < schedule.mesh.size(); ++r) out.push_back(static_cast<std::uint32_t>(machine->node_of(r)));
  return out;
}

// Of the training state; what a save makes in host memory is complete behind one repetition.
bool has_lazy_device_buffers(const Schedule& schedule) {
  return std::any_of(schedule.programs.begin(), schedule.programs.end(), [](const Program& program) {
    return std::any_of(program.buffers.begin(), program.buffers.end(), [](const Buffer& b) { return b.lazy && b.space == Space::Device; });
  });
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, const CostModel& costs, const Machine* machine, const SimulateOptions& options)
      : schedule_(schedule), machine_(machine), options_(options) {
    const bool shared = shares_between_ranks();
    const bool fold = options.fold == FoldChoice::On || (options.fold == FoldChoice::Auto && !shared);
    trace_.approximate_fold = fold && shared;
    node_of_ = nodes_of_ranks(schedule, machine);
    matching_ = match(schedule, fold ? Folding::Exact : Folding::None, node_of_);
    pricing_ = price(schedule, matching_, costs, options.guard_value, transfers_share() ? GroupPricing::Alone : GroupPricing::Together);
    check_time_range(schedule, matching_, pricing_, options.steps);
    note_coverage();
    plans_ = std::make_unique<MemoryPlans>(schedule, matching_);
    shared_.memory_plans = plans_.get();
    if (has_lazy_device_buffers(schedule) && options.steps == 1)
      trace_.warnings.push_back("the first step begins without its lazy buffers: --steps 2 shows the memory of those behind it");
    for (const SimRank& rank : matching_.ranks) shared_.node_of.push_back(node_of_.empty() ? 0 : node_of_[rank.rank.value]);
    if (machine != nullptr) {
      shared_.fair_links = machine->sharing == LinkSharing::Fair;
      shared_.compute_slots = static_cast<std::uint32_t>(std::max(machine->host.compute_slots, 0));
      shared_.slot_scope = machine->host.slot_scope;
      shared_.turnaround = ns(machine->host.turnaround);
      shared_.contention = machine->host.compute_contention;
    }
    const Bytes capacity = machine == nullptr ? Bytes(0) : machine->device.memory;
    for (std::uint32_t step = 0; step < requests_.size(); ++step)
      for (std::uint32_t t = 0; t < matching_.tables.size(); ++t)
        requests_[step].push_back(first_over_capacity(schedule, plans_->of(t, step), Space::Device, capacity));
    shared_memory_ = std::make_unique<SharedMemory>(matching_, *plans_, node_of_, machine);
    fill_ranks();
  }

  Trace run() {
    const bool event = options_.engine == EngineChoice::Event || shared_.any();
    bool finished = event ? run_event() : run_replay();
    if (finished) judge_device_memory();
    if (finished && trace_.outcome.status == Status::Ok && stalls_on_memory()) {
      clear_times();
      shared_.device_memory = machine_->device.memory.value;
      finished = run_event();
      if (finished) trace_.warnings.push_back("the host waits for memory: the active curve would exceed the device's capacity");
    }
    if (finished) judge_shared_memory();
    if (finished && machine_ != nullptr && trace_.outcome.status == Status::Ok) warn_of_reserved();
    if (!finished) explain_stop();
    finish_times();
    return std::move(trace_);
  }

 private:
  // Whether the engine lets transfers that run at the same time slow each other, or take turns.
  bool transfers_share() const {
    if (machine_ == nullptr) return false;
    return machine_->sharing == LinkSharing::Fair || (machine_->host.compute_slots > 0 && machine_->host.slot_scope == SlotScope::Everything);
  }

  bool shares_between_ranks() const {
    return machine_ != nullptr &&
           (machine_->sharing == LinkSharing::Fair || machine_->host.compute_slots > 0 || machine_->host.compute_contention > 0);
  }

  // A model that promises measured times says, once, what it could not find.
  void note_coverage() {
    trace_.provenance = pricing_.coverage.ops;
    std::uint64_t ops = 0, below = 0;
    std::string kinds;
    for (const std::uint64_t count : trace_.provenance) ops += count;
    for (const auto& [kind, count] : pricing_.coverage.below) {
      below += count;
      kinds += fmt::format("{}{} ({})", kinds.empty() ? "" : ", ", kind, count);
    }
    if (below > 0) trace_.warnings.push_back(fmt::format("{} of {} ops were not measured and have analytic times: {}", below, ops, kinds));
  }

  void fill_ranks() {
    for (const SimRank& rank : matching_.ranks) trace_.simulated.push_back(rank.rank);
    for (std::uint32_t stand_in : matching_.stand_in)
      trace_.stand_in.push_back(stand_in == Counterpart::kNobody ? RankId() : matching_.ranks[stand_in].rank);
    first_starts_.resize(matching_.ranks.size());
    step_ends_.resize(matching_.ranks.size());
    peaks_.resize(matching_.ranks.size());
    spans_.resize(matching_.ranks.size());
    total_ops_ = 0;
    for (const SimRank& rank : matching_.ranks) total_ops_ += (matching_.tables[rank.tables].nodes.size() - 1) * options_.steps;
  }

  void clear_times() {
    for (auto& ends : step_ends_) ends.clear();
    for (auto& peaks : peaks_) peaks.clear();
    for (auto& spans : spans_) spans.clear();
    trace_.samples.clear();
    last_times_.clear();
    shared_memory_->clear();
  }

  Tick ticker() {
    return [this](std::uint64_t done, std::int64_t now) {
      if (options_.progress) options_.progress(done, total_ops_, at_ns(now));
      return options_.stop == nullptr || !options_.stop->load(std::memory_order_relaxed);
    };
  }
  RankDone recorder() {
    return [this](std::uint32_t rank, std::uint32_t step, const OpTimes* times) { record(rank, step, times); };
  }

  bool run_replay() {
    trace_.engine = "replay";
    ReplayRules rules(pricing_, recorder(), ticker());
    return run_loop(replay_, rules);
  }
  bool run_event() {
    trace_.engine = "event";
    event_rules_ = std::make_unique<EventRules>(pricing_, matching_, shared_, recorder(), ticker());
    return run_loop(event_, *event_rules_);
  }
  template <class Loop, class Rules>
  bool run_loop(std::unique_ptr<Loop>& loop, Rules& rules) {
    last_times_.assign(matching_.ranks.size(), nullptr);
    times_ = std::make_unique<TimesBuffer>(Loop::time_slots(matching_));
    loop = std::make_unique<Loop>(matching_, rules, options_.steps, times_->data());
    const bool finished = loop->run();
    trace_.op_count = loop->ops_done();
    stopped_ = loop->stopped();
    return finished;
  }

  // A rank finished a repetition: its memory, its spans, its bounds.
  void record(std::uint32_t rank, std::uint32_t step, const OpTimes* times) {
    const ProgramTables& tables = matching_.tables[matching_.ranks[rank].tables];
    const std::size_t ops = tables.nodes.size() - 1;
    std::int64_t first = INT64_MAX, last = 0;
    for (std::size_t i = 0; i < ops; ++i) {
      first = std::min(first, times[i].start);
      last = std::max(last, times[i].end);
    }
    if (step == 0) first_starts_[rank] = ops == 0 ? 0 : first;
    step_ends_[rank].push_back(last);
    last_times_[rank] = times;
    if (step < requests_.size()) note_shortage(rank, step, times);
    const HostClock clock = host_clock(rank, times);
    shared_memory_->record(rank, step, times, clock);
    MemoryResult memory;
    const bool full = options_.detail == TraceDetail::Full;
    walker_.walk(plans_->of(matching_.ranks[rank].tables, step), matching_.ranks[rank].rank, times,
                 full ? MemoryWalker::Detail::Samples : MemoryWalker::Detail::Peaks, memory, clock);
    merge_peaks(peaks_[rank], memory.peaks);
    trace_.samples.insert(trace_.samples.end(), memory.samples.begin(), memory.samples.end());
    if (full) append_spans(rank, step, times, ops);
  }

  HostClock host_clock(std::uint32_t rank, const OpTimes* times) {
    const ProgramTables& tables = matching_.tables[matching_.ranks[rank].tables];
    if (tables.nodes.size() == 1) return {};
    const bool waits = tables.nodes[0].kind == OpNode::Kind::HostWait;
    HostClock clock{waits ? times[0].start : times[0].issue - pricing_.of(rank, 0).launch.total, {}};
    if (shared_.device_memory == 0) return clock;
    launches_.clear();
    for (std::uint32_t op = 0; op + 1 < tables.nodes.size(); ++op) launches_.push_back(pricing_.of(rank, op).launch.total);
    clock.launches = launches_;
    return clock;
  }

  void append_spans(std::uint32_t rank, std::uint32_t step, const OpTimes* times, std::size_t ops) {
    const std::uint32_t first_op = schedule_.programs[matching_.tables[matching_.ranks[rank].tables].program.value].first_op.value;
    if (spans_[rank].empty()) spans_[rank].reserve(options_.detail == TraceDetail::Full ? ops * options_.steps : ops);
    for (std::uint32_t i = 0; i < ops; ++i) {
      const OpTimes& t = times[i];
      spans_[rank].push_back(
          {step, matching_.ranks[rank].rank, OpId(first_op + i), at_ns(t.issue), at_ns(t.ready), at_ns(t.start), at_ns(t.end)});
    }
  }

  static void merge_peaks(std::vector<MemoryPeak>& into, const std::vector<MemoryPeak>& from) {
    if (into.empty()) into = from;
    for (std::size_t i = 0; i < from.size(); ++i)
      if (from[i].bytes > into[i].bytes) into[i] = from[i];
  }

  // ---- outcomes -------------------------------------------------------------------------------------------------------
  // The earliest device request that cannot be met; all repetitions but the first make the same ones, so the second tells when.
  void note_shortage(std::uint32_t rank, std::uint32_t step, const OpTimes* times) {
    const auto& request = requests_[step][matching_.ranks[rank].tables];
    if (!request) return;
    const std::int64_t at = request->op > 0 ? times[request->op - 1].issue : step > 0 ? times[0].issue : 0;
    const DeviceShortage found{at, rank, step};
    if (!shortage_ || found < *shortage_) shortage_ = found;
  }

  void judge_device_memory() {
    if (!shortage_) return;
    const SimRank& rank = matching_.ranks[shortage_->rank];
    trace_.outcome = out_of_memory(schedule_, plans_->of(rank.tables, shortage_->step), rank.rank, *requests_[shortage_->step][rank.tables],
                                   at_ns(shortage_->at));
  }

  void judge_shared_memory() {
    const auto shortage = shared_memory_->first_shortage();
    if (!shortage || (shortage_ && shortage_->at <= ns(shortage->at))) return;
    trace_.outcome = out_of_memory(schedule_, *shortage);
  }

  // One line for the worst rank: a folded or wide run has many alike.
  void warn_of_reserved() {
    if (machine_->device.memory.value == 0) return;
    const MemoryPeak* worst = nullptr;
    for (std::uint32_t r = 0; r < matching_.ranks.size(); ++r) {
      const MemoryPeak* reserved = peak(r, Curve::Reserved);
      if (reserved == nullptr || reserved->bytes <= machine_->device.memory) continue;
      if (worst == nullptr || reserved->bytes > worst->bytes) worst = reserved;
    }
    if (worst == nullptr) return;
    trace_.warnings.push_back(fmt::format("rank {} reserves {:.1f} GiB of {:.1f} GiB: it fits only by flushing the allocator's cache",
                                          worst->rank.value, gib(worst->bytes), gib(machine_->device.memory)));
  }

  const MemoryPeak* peak(std::uint32_t rank, Curve curve) const {
    for (const MemoryPeak& p : peaks_[rank])
      if (p.space == Space::Device && p.curve == curve) return &p;
    return nullptr;
  }

  bool stalls_on_memory() const {
    if (machine_ == nullptr || machine_->device.memory.value == 0) return false;
    for (std::uint32_t r = 0; r < matching_.ranks.size(); ++r) {
      const MemoryPeak* active = peak(r, Curve::Active);
      if (active != nullptr && active->bytes > machine_->device.memory) return true;
    }
    return false;
  }

  void explain_stop() {
    if (stopped_) {
      trace_.outcome = {Status::Interrupted, "stopped by a signal", {}, {}, {}, {}, {}, {}};
      return;
    }
    trace_.outcome.status = Status::Deadlock;
    const auto found = find_deadlock(schedule_);
    if (!found.empty()) {
      trace_.outcome.text = found.front().text;
      trace_.outcome.details = found.front().details;
      return;
    }
    trace_.outcome.text = "the step cannot go on: a host waits for memory that is freed only by ops behind it";
    for (std::uint32_t r = 0; event_ && r < matching_.ranks.size(); ++r) {
      if (!event_->host_stalled(r)) continue;
      const OpId op(plans_->of(matching_.ranks[r].tables, 0).first_op().value + event_->host_position(r));
      trace_.outcome.details.push_back(
          fmt::format("rank {} stalls (wait_mem) before `{}`", matching_.ranks[r].rank.value, print_op(schedule_, op)));
    }
  }

  // ---- times ----------------------------------------------------------------------------------------------------------
  void finish_times() {
    std::int64_t first = INT64_MAX, last = 0;
    std::uint32_t slowest = 0;
    std::size_t steps = options_.steps;
    for (std::uint32_t r = 0; r < step_ends_.size(); ++r) {
      steps = std::min(steps, step_ends_[r].size());
      if (step_ends_[r].empty()) continue;
      first = std::min(first, first_starts_[r]);
      if (step_ends_[r].back() > last) {
        last = step_ends_[r].back();
        slowest = r;
      }
    }
    if (first == INT64_MAX) first = 0;
    trace_.makespan = Duration(std::max<std::int64_t>(last - first, 0));
    std::int64_t origin = first;
    if (steps > 1 && step_ends_[slowest].size() > 1) origin = step_ends_[slowest][step_ends_[slowest].size() - 2];
    trace_.step_time = Duration(last - origin);
    for (auto& peaks : peaks_) trace_.peaks.insert(trace_.peaks.end(), peaks.begin(), peaks.end());
    const bool all_ran = steps == options_.steps;
    for (std::uint32_t r = 0; all_ran && r < matching_.ranks.size(); ++r) break_down_rank(r, at_ns(origin));
    for (auto& spans : spans_) trace_.spans.insert(trace_.spans.end(), spans.begin(), spans.end());
    if (!all_ran && options_.detail == TraceDetail::Full) append_partial_spans();
  }

  void break_down_rank(std::uint32_t rank, SimTime origin) {
    const std::size_t ops = matching_.tables[matching_.ranks[rank].tables].nodes.size() - 1;
    std::vector<Span> own;
    if (spans_[rank].empty()) {
      append_spans(rank, options_.steps - 1, last_times_[rank], ops);
      own = std::move(spans_[rank]);
      spans_[rank].clear();
    }
    const std::span<const Span> last = own.empty() ? std::span<const Span>(spans_[rank]).last(ops) : std::span<const Span>(own);
    trace_.breakdowns.push_back(break_down(schedule_, matching_.ranks[rank].rank, last, origin, trace_.step_time));
    trace_.largest_rank_span = std::max(trace_.largest_rank_span, trace_.breakdowns.back().rank_span);
  }

  // Of a run that could not finish: the ops that ended.
  void append_partial_spans() {
    const auto collect = [this](const auto& loop) {
      for (std::uint32_t r = 0; r < matching_.ranks.size(); ++r) {
        if (loop.finished(r)) continue;
        const ProgramTables& tables = matching_.tables[matching_.ranks[r].tables];
        const std::uint32_t first_op = schedule_.programs[tables.program.value].first_op.value;
        for (std::uint32_t i = 0; i + 1 < tables.nodes.size(); ++i) {
          if (!loop.ended(r, i)) continue;
          const OpTimes& t = loop.times(r)[i];
          trace_.spans.push_back(
              {loop.step(r), matching_.ranks[r].rank, OpId(first_op + i), at_ns(t.issue), at_ns(t.ready), at_ns(t.start), at_ns(t.end)});
        }
      }
    };
    if (event_) collect(*event_);
    else if (replay_) collect(*replay_);
    std::stable_sort(trace_.spans.begin(), trace_.spans.end(), [](const Span& a, const Span& b) {
      return std::tie(a.rank, a.step, a.op) < std::tie(b.rank, b.step, b.op);
    });
  }

  const Schedule& schedule_;
  const Machine* machine_;
  const SimulateOptions& options_;
  Trace trace_;
  Matching matching_;
  std::vector<std::uint32_t> node_of_;  // [mesh rank]; empty without a machine
  Pricing pricing_;
  SharedResources shared_;
  struct DeviceShortage {
    std::int64_t at = 0;
    std::uint32_t rank = 0, step = 0;  // simulated rank; repetition
    auto operator<=>(const DeviceShortage&) const = default;
  };
  std::unique_ptr<MemoryPlans> plans_;
  std::array<std::vector<std::optional<MemoryRequest>>, 2> requests_;  // [first or later repetition][tables] the first that exceeds the device
  std::optional<DeviceShortage> shortage_;                             // the earliest of them
  std::unique_ptr<SharedMemory> shared_memory_;
  MemoryWalker walker_;
  std::vector<std::int64_t> launches_;  // of the rank that is walked
  std::unique_ptr<EngineLoop<ReplayRules>> replay_;
  std::unique_ptr<EventRules> event_rules_;
  std::unique_ptr<EngineLoop<EventRules>> event_;
  std::unique_ptr<TimesBuffer> times_;
  std::vector<std::int64_t> first_starts_;
  std::vector<std::vector<std::int64_t>> step_ends_;  // [simulated rank][step]
  std::vector<std::vector<MemoryPeak>> peaks_;
  std::vector<std::vector<Span>> spans_;
  std::vector<const OpTimes*> last_times_;            // of the last repetition; owned by the loop
  std::uint64_t total_ops_ = 0;
  bool stopped_ = false;
};

}  // namespace

Trace simulate(const Schedule& schedule, const CostModel& costs, const Machine* machine, const SimulateOptions& options) {
  return Simulation(schedule, costs, machine, options).run();
}

}  // namespace steptwin
