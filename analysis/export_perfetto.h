// A stored run as a Perfetto trace (open it at ui.perfetto.dev): ranks are processes in rank order, lanes threads in lane order (what
// the issuing thread waits for is a last lane, "host"), memory curves are counters, arrows lead from a send to its recv.
// Spans of all steps are exported; members of a group are drawn to the group's end. Reads rank by rank: in memory are the ops of the
// programs shown and the spans of one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/store.h"

namespace steptwin {

struct PerfettoExport {
  // Empty = every rank that was simulated, at most kDefaultRanks. A rank of a folded run that is asked for by number is drawn with
  // the spans of the rank that stands for it.
  std::vector<RankId> ranks;
};

struct PerfettoResult {
  std::uint64_t slices = 0, flows = 0, counter_values = 0;
  std::vector<RankId> ranks;
  std::vector<std::string> warnings;  // a part was left out; the run holds no spans
};

inline constexpr std::size_t kDefaultRanks = 256;  // beyond, the viewer gets slow (specs/ux.md 8.1)

// `run_id` must exist. Throws InputError (code RANK) for a rank that the run does not have.
PerfettoResult export_perfetto(const Store& store, std::int64_t run_id, const std::function<void(std::string_view)>& sink,
                               const PerfettoExport& options = {});

}  // namespace steptwin
