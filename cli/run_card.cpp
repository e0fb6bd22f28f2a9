// The card of a run for people (specs/ux.md 5).
#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "cli/run_report.h"
#include "schedule/batching.h"

namespace steptwin {

namespace {

constexpr std::size_t kMostRows = 16;

std::string mesh_words(const Mesh& mesh) {
  std::string text;
  for (const Axis& axis : mesh.axes) text += fmt::format("{}{}{}", text.empty() ? "" : " ", axis.name, axis.size);
  return text;
}

std::string plural(std::int64_t count, const char* word) { return fmt::format("{} {}{}", human_count(count), word, count == 1 ? "" : "s"); }

std::string micro_batches(std::int64_t count) { return fmt::format("{} micro-batch{}", human_count(count), count == 1 ? "" : "es"); }

std::string batches(const Scenario& scenario) {
  if (!batch_on_every_rank(scenario)) return micro_batches(scenario.micro_batches);
  return fmt::format("{} batch{} of {}", human_count(scenario.micro_batches), scenario.micro_batches == 1 ? "" : "es",
                     micro_batches(scenario.pipeline.micro_batches));
}

bool is_save(const SimulationRun& run) { return run.subject.scenario && run.subject.scenario->task == RunTask::Save; }

std::string title(const SimulationRun& run, const char* dot) {
  const Subject& subject = run.subject;
  std::string text = fmt::format("{} {} {} {} {} ({})", printable(subject.name), dot, subject.order, dot,
                                 plural(subject.schedule.mesh.size(), "rank"), mesh_words(subject.schedule.mesh));
  if (subject.scenario && !is_save(run)) text += fmt::format(" {} {}", dot, batches(*subject.scenario));
  if (run.options.steps > 1) text += fmt::format(" {} {}", dot, plural(run.options.steps, is_save(run) ? "time" : "step"));
  if (subject.machine) text += fmt::format(" {} {}", dot, subject.machine->name);
  return text + "\n";
}

std::string speed_line(const SimulationRun& run, Micro micro) {
  const RunSummary& s = run.summary;
  std::string text = (is_save(run) ? "save time     " : "step time     ") + pad_right(human_time(s.step_time, micro), 14);
  const auto ranks = static_cast<double>(std::max<std::size_t>(s.ranks.size(), 1));
  if (s.tokens_per_second)
    text += pad_right(fmt::format("{} tokens/s/rank", human_count(static_cast<std::int64_t>(*s.tokens_per_second / ranks + 0.5))), 26);
  if (s.mfu) text += "MFU " + human_percent(*s.mfu);
  return text;
}

// "(theory 15.8 % = 3/19)": (p-1)/(m+p-1) of equal stages without communication.
std::string theory(const SimulationRun& run) {
  if (!run.summary.bubble_theory || !run.subject.scenario) return {};
  const Scenario& scenario = *run.subject.scenario;
  const auto axis = scenario.mesh.axis("pp");
  const std::int64_t stages = axis ? scenario.mesh.axes[*axis].size : 1;
  return fmt::format("(theory {} = {}/{} for equal stages)", human_percent(*run.summary.bubble_theory), stages - 1,
                     scenario.micro_batches + stages - 1);
}

std::string bubble_line(const SimulationRun& run) {
  const RunSummary& s = run.summary;
  if (!s.bubble_fraction) return {};
  std::string text = "bubble        " + pad_right(human_percent(*s.bubble_fraction), 14) + theory(run) + "\n";
  if (s.bubble_rate_makespan && s.bubble_rate_span) {
    text += fmt::format("idle rate     {}of the makespan, {} of the longest rank span\n",
                        pad_right(human_percent(*s.bubble_rate_makespan), 14), human_percent(*s.bubble_rate_span));
  }
  return text;
}

std::string memory_line(const SimulationRun& run, Micro micro) {
  const RunPeak* peak = run.summary.peak(Curve::Allocated);
  if (peak == nullptr) return {};
  std::string text = fmt::format("peak memory   {} on rank {}", human_bytes(peak->bytes), peak->rank.value);
  if (run.subject.machine) {
    const Bytes capacity = run.subject.machine->device.memory;
    text += fmt::format(" of {}   {}", human_bytes(capacity),
                        peak->bytes > capacity ? "OUT OF MEMORY" : "headroom " + human_bytes(capacity - peak->bytes));
  }
  // The curve is on the clock of the host, which may be far ahead of the device.
  text += peak->op_name.empty()
              ? "\n              resident"
              : fmt::format("\n              at the issue of {} ({})", peak->op_name, human_time(peak->at.time_since_epoch(), micro));
  for (std::size_t i = 0; i < peak->categories.size() && i < 4; ++i) {
    text += fmt::format("{} {} {}", i == 0 ? ":" : ",", peak->categories[i].first, human_bytes(peak->categories[i].second));
  }
  return text + "\n";
}

// Pinned and pageable memory of the host, where a program uses them: the most that one rank holds.
std::string host_memory_line(const Trace& trace) {
  std::string text;
  for (const Space space : {Space::Pinned, Space::Pageable}) {
    Bytes most;
    for (const MemoryPeak& peak : trace.peaks)
      if (peak.space == space && peak.curve == Curve::Allocated) most = std::max(most, peak.bytes);
    if (most > Bytes(0)) text += fmt::format("{}{} {}", text.empty() ? "host memory   " : ", ", human_bytes(most), name_of(space));
  }
  return text.empty() ? text : text + " on one rank\n";
}

// The largest category of the peak of a rank: "optimizer".
std::string limit_of(const Trace& trace, RankId stand_in) {
  for (const MemoryPeak& peak : trace.peaks) {
    if (peak.rank != stand_in || peak.space != Space::Device || peak.curve != Curve::Allocated || peak.bytes.value == 0) continue;
    const auto largest = std::max_element(peak.by_category.begin(), peak.by_category.end());
    return name_of(static_cast<Category>(std::distance(peak.by_category.begin(), largest)));
  }
  return {};
}

std::string share(Duration part, const RankRow& row) {
  return ns(row.step()) > 0 ? human_percent(static_cast<double>(ns(part)) / static_cast<double>(ns(row.step()))) : "-";
}

std::string rank_row(const SimulationRun& run, const RankRow& row) {
  const Bytes peak = row.device_peak[static_cast<std::size_t>(Curve::Allocated)];
  return fmt::format("{:>5} {:>6} {:>9} {:>13} {:>8} {:>7} {:>11}   {}\n", row.rank.value, row.stage < 0 ? "-" : std::to_string(row.stage),
                     share(row.compute, row), share(row.exposed_communication, row), share(row.bubble, row), share(row.other, row),
                     human_bytes(peak), limit_of(run.trace, row.stand_in));
}

// Rows for people: simulated ranks only (the others equal their stand-in), at most kMostRows, the first ones.
std::string rank_rows(const SimulationRun& run) {
  const char* idle = is_save(run) ? "waiting" : " bubble";
  std::string text = fmt::format(" rank  stage   compute  exposed comm  {}   other    peak mem   largest part\n", idle);
  std::size_t shown = 0, hidden = 0, equal = 0;
  for (const RankRow& row : run.summary.ranks) {
    if (row.program.empty()) continue;
    if (row.stand_in != row.rank)
      ++equal;
    else if (shown == kMostRows)
      ++hidden;
    else {
      text += rank_row(run, row);
      ++shown;
    }
  }
  if (hidden > 0) text += fmt::format("      {} more ranks: --format csv has all\n", human_count(static_cast<std::int64_t>(hidden)));
  if (equal > 0) text += fmt::format("      {} other ranks do the same as one of these\n", human_count(static_cast<std::int64_t>(equal)));
  return text;
}

}  // namespace

std::string run_card(const SimulationRun& run, const Session& session) {
  const Micro micro = session.micro();
  std::string text = title(run, session.terminal.utf8 ? "·" : "|") + "\n";
  text += speed_line(run, micro) + "\n" + bubble_line(run) + memory_line(run, micro) + host_memory_line(run.trace) + "\n" + rank_rows(run);
  const std::string strips = phase_strips(run, static_cast<std::size_t>(std::clamp(session.terminal.width - 12, 20, 100)), kMostRows);
  return strips.empty() ? text : text + "\n" + strips;
}

Table rank_table(const SimulationRun& run) {
  Table table{{"rank", "stand_in", "program", "stage", "compute_ns", "exposed_communication_ns", "bubble_ns", "other_ns",
               "peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "peak_live_bytes"},
              {}};
  for (const RankRow& row : run.summary.ranks) {
    const auto peak = [&](Curve curve) { return number_cell(row.device_peak[static_cast<std::size_t>(curve)].value); };
    table.rows.push_back({number_cell(row.rank.value), number_cell(row.stand_in.value), text_cell(row.program),
                          row.stage < 0 ? Table::Cell{} : number_cell(row.stage), number_cell(ns(row.compute)),
                          number_cell(ns(row.exposed_communication)), number_cell(ns(row.bubble)), number_cell(ns(row.other)),
                          peak(Curve::Allocated), peak(Curve::Active), peak(Curve::Reserved), peak(Curve::Live)});
  }
  return table;
}

}  // namespace steptwin
