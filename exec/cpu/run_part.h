// What one rank has left of a run: everything an ExecutionResult is made of. Packed, it goes from process to process; all of a run are the
// same binary on the same kind of computer, so values are packed as they lie in memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exec/cpu/tensor_shares.h"
#include "traces/trace.h"

namespace steptwin {

struct RankPart {
  RankId rank;
  std::vector<Span> spans;  // of the measured steps, by step and op
  std::vector<MemorySample> samples;
  std::vector<MemoryPeak> peaks;
  std::array<std::vector<std::int64_t>, kSpaces> allocated;  // [space][op]
  std::vector<std::vector<float>> losses;                    // [step, warm-up too][op that writes a loss]
  TensorShares gradients, hidden;
  std::map<std::uint32_t, TensorShares> parameters;  // [buffer] what it holds
};

// The times of spans, samples and peaks, each moved by `move`.
template <class Move>
void move_times(RankPart& part, Move move) {
  for (Span& span : part.spans)
    for (SimTime* time : {&span.issue, &span.ready, &span.start, &span.end}) *time = move(*time);
  for (MemorySample& sample : part.samples) sample.at = move(sample.at);
  for (MemoryPeak& peak : part.peaks) peak.at = move(peak.at);
}

std::string pack(const RankPart& part);
RankPart unpack_rank_part(const std::string& packed);  // throws InternalError: cut off

}  // namespace steptwin
