// Perfetto protobuf writer (field numbers: google/perfetto protos/perfetto/trace, specs/ux.md 8.1). Ranks are processes in rank
// order, lanes threads in lane order, memory curves counters, arrows from send to recv. Written as it goes, no buffering of the trace:
// the sink gets about a megabyte at a time. A process is named before its lanes, a lane before its slices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "traces/trace.h"

namespace steptwin {

struct PerfettoSource {
  // Everything the exporter needs, whoever supplies it (a fresh run, or the store).
  struct Lane {
    RankId rank;
    std::uint32_t lane = 0;
    std::string name;
  };
  struct Slice {
    RankId rank;
    std::uint32_t lane = 0;
    std::string_view name;  // "F 3", "send 3"
    std::int64_t start_ns = 0, end_ns = 0;
    std::int32_t stage = -1, micro_batch = -1, layer = -1;
    std::int64_t bytes = 0;
    std::uint32_t op = 0;
    std::uint64_t flow_out = 0, flow_in = 0;  // equal non-zero ids join a send to its recv; never both on one slice
    std::string_view segment;                 // empty = none
  };
  struct Counter {
    RankId rank;
    std::string_view name;
    std::int64_t at_ns = 0, bytes = 0;
  };
};

class PerfettoWriter {
 public:
  using Sink = std::function<void(std::string_view bytes)>;
  explicit PerfettoWriter(Sink sink);
  ~PerfettoWriter();
  PerfettoWriter(PerfettoWriter&&) noexcept;
  void process(RankId rank, const std::string& name);
  void lane(const PerfettoSource::Lane& lane);
  // Slices of one lane come in start order, outer before inner. A viewer needs strict nesting: a slice that would outlive the one it
  // starts in is cut to it. An arrow leaves with the begin of its send and arrives with the end of its recv, and a viewer that meets
  // the arrival first (in time, then in the order written) drops it: lanes that send at the same instant are written first.
  void slice(const PerfettoSource::Slice& slice);
  void counter(const PerfettoSource::Counter& counter);  // the level from at_ns on
  void finish();                                         // closes what is open and hands the rest to the sink

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace steptwin
