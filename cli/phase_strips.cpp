// The pipeline at a glance: phases of the compute lanes over the last step, one line a rank.
#include <fmt/core.h>

#include <algorithm>

#include "cli/run_report.h"

namespace steptwin {

namespace {

char letter(const Op& op) {
  const char* name = name_of(op.label.phase);
  return name[0] == 0 ? 'x' : name[0];
}

bool computes(const Schedule& schedule, OpId id) {
  const Op& op = schedule.ops[id.value];
  return std::holds_alternative<Compute>(op.body) && op.lane.valid() &&
         schedule.program_of(id).lanes[op.lane.value].engine == Engine::Compute;
}

struct Window {
  std::int64_t first = 0, last = 0;
};

// Paints a span onto the columns whose middle it covers, at least one.
void paint(std::string& strip, const Span& span, const Window& window, char mark) {
  const double scale = static_cast<double>(strip.size()) / static_cast<double>(std::max<std::int64_t>(window.last - window.first, 1));
  const auto column = [&](std::int64_t at) {
    return static_cast<std::size_t>(std::clamp(static_cast<double>(at - window.first) * scale, 0.0, static_cast<double>(strip.size())));
  };
  const std::size_t begin = std::min(column(ns(span.start)), strip.size() - 1);
  const std::size_t end = std::max(column(ns(span.end)), begin + 1);
  std::fill(strip.begin() + static_cast<std::ptrdiff_t>(begin), strip.begin() + static_cast<std::ptrdiff_t>(end), mark);
}

}  // namespace

std::string phase_strips(const SimulationRun& run, std::size_t width, std::size_t most_ranks) {
  const std::vector<Span>& spans = run.trace.spans;
  if (spans.empty()) return {};
  const std::uint32_t step =
      std::max_element(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.step < b.step; })->step;
  Window window{INT64_MAX, 0};
  for (const Span& span : spans) {
    if (span.step != step) continue;
    window.first = std::min(window.first, ns(span.start));
    window.last = std::max(window.last, ns(span.end));
  }
  std::vector<std::pair<RankId, std::string>> strips;
  for (const Span& span : spans) {
    if (span.step != step) continue;
    if (strips.empty() || strips.back().first != span.rank) {
      if (strips.size() == most_ranks) break;
      strips.emplace_back(span.rank, std::string(width, '.'));
    }
    if (span.end > span.start && computes(run.subject.schedule, span.op))
      paint(strips.back().second, span, window, letter(run.subject.schedule.ops[span.op.value]));
  }
  const auto blank = [](const auto& strip) { return strip.second.find_first_not_of('.') == std::string::npos; };
  if (std::all_of(strips.begin(), strips.end(), blank)) return {};  // nothing computes: a checkpoint save
  std::string text;
  for (const auto& [rank, strip] : strips) text += fmt::format("rank {:<4} {}\n", rank.value, strip);
  return text;
}

}  // namespace steptwin
