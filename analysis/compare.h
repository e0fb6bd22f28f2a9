// A prediction beside a measurement of the same schedule, joined per (rank, op). A measured op counts with the median of its repetitions; the
// predicted one is that of the rank that stands for it, in the last predicted step; the members of a group are one op. Errors are
// (predicted - measured) / measured of execution time (end - start).
// Compared: every op longer than 50 us that is neither a copy nor a host wait; the others are counted and reported apart, because their
// times are those of the clock and the issuing thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "schedule/base/units.h"
#include "traces/store.h"

namespace steptwin {

struct ComparedOp {
  std::int64_t rank = 0, op = 0;
  std::string kind, phase, name;
  std::int64_t stage = -1;
  double predicted_ns = 0, measured_ns = 0;
  double error() const { return (predicted_ns - measured_ns) / measured_ns; }
};

// Ops that belong together: all of a kind and phase, all of a rank, all of a pipeline stage.
struct ComparedGroup {
  std::string name;
  std::int64_t ops = 0;
  double predicted_ns = 0, measured_ns = 0;  // sums
  double mean_absolute_error = 0;            // mean of |error|
  double median_error = 0;                   // median of |error|
  double signed_error() const { return measured_ns > 0 ? (predicted_ns - measured_ns) / measured_ns : 0; }
};

struct ComparedPeak {
  std::int64_t rank = 0;
  std::string curve;                             // "allocated", "reserved"
  std::int64_t predicted = 0, measured = 0;      // bytes, device
  std::string predicted_at, measured_at;         // the instant: the op whose allocations raised it; empty: from the start
  double error() const { return measured > 0 ? static_cast<double>(predicted - measured) / static_cast<double>(measured) : 0; }
};

struct Comparison {
  std::int64_t sim_run = 0, exec_run = 0;
  std::int64_t matched = 0, unmatched = 0;  // (rank, op) pairs
  double matched_fraction() const { return matched + unmatched == 0 ? 1 : static_cast<double>(matched) / static_cast<double>(matched + unmatched); }
  double predicted_step_ns = 0, measured_step_ns = 0;  // measured: median over steps
  double step_spread = 0;                              // (largest - smallest measured step) / median
  double step_time_error() const { return measured_step_ns > 0 ? (predicted_step_ns - measured_step_ns) / measured_step_ns : 0; }
  double op_error_median = 0;                 // of |error| over compared ops
  double op_error_mean = 0;                   // MAPE
  double op_error_signed_mean = 0;
  double peak_memory_error = 0;               // of the rank where it is largest, signed
  std::vector<ComparedGroup> kinds, ranks, stages;  // compared ops; stages: those that belong to one
  ComparedGroup apart;                        // the others
  std::vector<ComparedPeak> peaks;            // allocated and reserved, by rank
  std::vector<std::pair<std::string, std::int64_t>> beside;  // measured bytes beside the IR buffers, by name of the metric
  std::vector<ComparedOp> worst;              // largest |predicted - measured| first, at most 10
};

// Throws InputError (code RUN) when the runs are not a finished prediction and a finished execution of one schedule.
// `first` may be the only one: an execution, whose prediction is known.
Comparison compare_runs(const Store& store, const std::vector<std::int64_t>& runs);

}  // namespace steptwin
