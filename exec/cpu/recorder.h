// Writes down what happens during an execution: the spans of a trace, the memory curves, the measured `allocated` samples.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "exec/cpu/rank_memory.h"
#include "exec/cpu/run_part.h"
#include "schedule/ir/loop.h"
#include "schedule/ir/matching.h"
#include "traces/trace.h"

namespace steptwin {

class Recorder {
 public:
  // Steps before `warm_up` leave no trace. `now`: ns since the start of the run.
  Recorder(const Schedule& schedule, const Matching& matching, std::vector<RankMemory>& memories, std::uint32_t warm_up,
           std::function<std::int64_t()> now);

  void begin_step(std::uint32_t rank, std::uint32_t step);
  void marked(std::uint32_t rank, std::uint32_t step, std::uint32_t op);  // between the allocations and the drops of op
  void step_done(std::uint32_t rank, std::uint32_t step, const OpTimes* times);
  void partial_step(std::uint32_t rank, std::uint32_t step, const OpTimes* times, const std::function<bool(std::uint32_t op)>& has_ended);

  std::vector<RankPart> take_parts();  // [rank] what was recorded, times by `now`. Call once

 private:
  struct RankRecord {
    bool measuring = false;
    OpId current;                                      // op being issued, for the peaks
    std::vector<Span> spans;
    std::vector<MemorySample> samples;
    std::vector<MemoryPeak> peaks;
  };
  const Program& program(std::uint32_t rank) const;
  void changed(std::uint32_t rank, const BufferPool::Change& change);
  void raise_peak(std::uint32_t rank, Space space, Curve curve, std::int64_t bytes);
  void open_curves(std::uint32_t rank);
  void append_span(std::uint32_t rank, std::uint32_t step, std::uint32_t op, const OpTimes& times);

  const Schedule& schedule_;
  const Matching& matching_;
  std::vector<RankMemory>& memories_;
  std::uint32_t warm_up_;
  std::function<std::int64_t()> now_;
  std::vector<RankRecord> ranks_;
  std::array<std::vector<std::vector<std::int64_t>>, kSpaces> allocated_;  // [space][rank][op]
};

}  // namespace steptwin
