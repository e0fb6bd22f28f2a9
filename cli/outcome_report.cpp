#include "cli/outcome_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cli/format.h"
#include "cli/memory_view.h"
#include "schedule/ir/text.h"

namespace steptwin {

namespace {

constexpr std::size_t kHolders = 5;

// "optimizer 37.5 GiB  param 9.4 GiB ...", largest first.
std::string holders(const std::array<Bytes, kCategories>& by_category) {
  std::vector<std::pair<Bytes, Category>> list;
  for (std::size_t c = 0; c < kCategories; ++c) {
    if (by_category[c].value > 0) list.emplace_back(by_category[c], static_cast<Category>(c));
  }
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < list.size() && i < kHolders; ++i)
    text += fmt::format("{}{} {}", i ? ", " : "", name_of(list[i].second), human_bytes(list[i].first));
  return text;
}

std::string outcome_text(const Outcome& outcome) {
  std::string text = "error: " + outcome.text;
  for (const std::string& line : outcome.details) text += "\n  " + line;
  return text;
}

// Peak of the rank that ran out, from its program: exact whether or not the simulation went on to the peak.
std::string peak_line(const Schedule& schedule, RankId rank) {
  const std::vector<ProgramId> programs = schedule.program_of_rank();
  if (rank.value >= programs.size() || !programs[rank.value].valid()) return {};
  const ProgramPeak peak = device_peak(schedule, programs[rank.value]);
  const std::string at = peak.op.valid() ? print_op(schedule, peak.op) : "the resident buffers";
  return fmt::format("\n  at its peak   {}: {}\n                at `{}`", human_bytes(peak.bytes), holders(peak.by_category), at);
}

std::string remedy_lines(const Subject& subject, const std::vector<Remedy>& remedies) {
  if (!subject.scenario) return "\n  help: --allow-oom simulates it all the same";
  if (remedies.empty()) {
    return "\n  help: recompute, bf16 gradients, smaller micro-batches and more pipeline stages do not suffice, alone or together;"
           "\n        --allow-oom simulates it all the same";
  }
  std::string text;
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    text += fmt::format("\n  {} {}: peak {}  ({})", i == 0 ? "help:" : "   or", remedies[i].text, human_bytes(remedies[i].peak),
                        remedies[i].flags());
  }
  return text;
}

}  // namespace

std::string out_of_memory_text(const Subject& subject, const Trace& trace, const std::vector<Remedy>& remedies) {
  if (trace.outcome.space != Space::Device)
    return outcome_text(trace.outcome) + "\n  help: put fewer ranks on a node, or use a machine with more of this memory;"
                                         "\n        --allow-oom simulates it all the same";
  return outcome_text(trace.outcome) + peak_line(subject.schedule, trace.outcome.rank) + remedy_lines(subject, remedies);
}

std::string deadlock_text(const Trace& trace) { return outcome_text(trace.outcome); }

}  // namespace steptwin
