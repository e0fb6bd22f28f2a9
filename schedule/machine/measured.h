// What calibration measured on a machine: times of exact shapes, by key. A plain value; written into and read from the machine profile
// ("measured"), used by the cost model `measured` (sim/cost/measured.h). Keys are texts made by schedule/ir/op_key.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schedule/base/dtype.h"
#include "schedule/base/units.h"

namespace steptwin {

// Of all samples of one key. `time` is what the cost model uses: the smallest of the rounds' medians, what the machine does when nothing
// else disturbs it. deviation: the median distance from the median.
struct Timing {
  Duration time{0};
  Duration median{0}, least{0}, p10{0}, p90{0}, deviation{0};
  std::int64_t samples = 0;
  std::vector<Duration> rounds;  // median of every round, in order
  bool operator==(const Timing&) const = default;
};

struct MeasuredCompute {
  std::string segment, phase, engine;  // "attn", "F", "compute"
  std::vector<std::string> kernels;    // kernel_text of each, in order
  Flops flops;                         // sums over the kernels
  Bytes bytes;
  Timing timing;
  bool operator==(const MeasuredCompute&) const = default;
};

// A message ("message", two members) or a collective ("all_reduce"). Members lie on `nodes` nodes, at most `members_per_node` on one.
struct MeasuredTransfer {
  std::string kind;
  std::uint32_t members = 2, nodes = 1, members_per_node = 2;
  std::optional<DType> dtype;  // only where the op calculates
  Bytes bytes;
  Timing timing;
  bool operator==(const MeasuredTransfer&) const = default;
};

struct MeasuredCopy {
  std::string from, to;                         // spaces
  std::optional<std::pair<DType, DType>> cast;  // unset: bytes are moved as they are
  Bytes bytes;                                  // read
  Timing timing;
  bool operator==(const MeasuredCopy&) const = default;
};

// What the issuing thread needs for an op of a kind.
struct MeasuredIssue {
  std::string kind;
  Timing timing;
  bool operator==(const MeasuredIssue&) const = default;
};

struct MeasuredSource {
  std::string scenario, sha256;  // name (or "sweep ..."), digest of the resolved scenario (or of the schedule)
  bool operator==(const MeasuredSource&) const = default;
};

struct MeasuredTables {
  // Provenance.
  std::string backend, mode, date, host, tool;
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;
  std::vector<MeasuredSource> sources;
  std::int64_t rounds = 1, steps = 1, warm_up = 0, seed = 1;
  std::string clock = "wall";             // or "thread": processor time of the one thread
  std::optional<double> processor_share;  // of one thread: its processor time over wall time; well below 1: others took the processor

  std::map<std::string, double> facts;    // what is no op: the backend's probe, and medians of what it says of the runs (ns, bytes, MHz, ratios)

  std::vector<MeasuredCompute> compute;
  std::vector<MeasuredTransfer> transfers;
  std::vector<MeasuredCopy> copies;
  std::vector<MeasuredIssue> issue;
  std::size_t rows() const { return compute.size() + transfers.size() + copies.size() + issue.size(); }
  bool operator==(const MeasuredTables&) const = default;
};

}  // namespace steptwin
