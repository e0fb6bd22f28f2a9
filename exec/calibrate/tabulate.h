// Turns executed traces into measured tables: durations by key, round by round. Knows no backend: whatever ran the schedule, its spans
// are the samples, so that what a real run pays is what is measured.
//   compute    end - start, by segment, phase, engine and kernels (ops of several parts are not taken apart, and not tabulated); where ranks
//              share a GPU, what it would be alone (Host::compute_contention)
//   transfers  end - the moment the last member was ready, or, where one thread does everything, the moment it became free; a group's time
//   is
//              shared equally by its members
//   issue      distance of two ops issued one after the other, nothing else done between them; more than 50 us is a wait and no issue. With a
//              thread per rank (streams) of that rank; the compute ops there launch many kernels each, which the analytic model counts
//   turnaround (Interp) per step: the time the one thread spent between works, over the number of compute ops and copies
// Ops that state their duration are not tabulated: no cost model is asked for them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "exec/backend.h"
#include "exec/calibrate/statistics.h"
#include "exec/calibrate/timeline.h"
#include "schedule/ir/matching.h"

namespace steptwin {

class Tabulator {
 public:
  explicit Tabulator(ExecutionMode mode) : mode_(mode) {}

  // A finished run. `matching` of the same schedule, unfolded, with the nodes of the machine the tables are for.
  void add(const Schedule& schedule, const Matching& matching, const Trace& trace);
  void end_round() { ++round_; }

  void fill(MeasuredTables& tables) const;  // the four lists of rows, ascending by key
  Timing turnaround() const { return timing_of(turnaround_); }
  double contention() const;

 private:
  template <class Row>
  using Samples = std::map<std::string, std::pair<Row, Rounds>>;

  template <class Row>
  void sample(Samples<Row>& samples, const std::string& key, Row row, std::int64_t time);
  void add_item(const Schedule& schedule, const Matching& matching, const WorkItem& item, double others);
  void add_compute(const Schedule& schedule, const Program& program, const Op& op, CrowdedSample sample);
  void add_transfer(const Op& op, const CommShape& shape, std::int64_t time);
  void add_copy(const Schedule& schedule, const Program& program, OpId op, std::int64_t time);
  void add_issue(const Schedule& schedule, const Trace& trace, const std::vector<WorkItem>& items);
  void add_turnaround(const std::vector<WorkItem>& items);
  template <class Sample>
  std::vector<Sample>& of_round(std::vector<std::vector<Sample>>& rounds) const;

  const ExecutionMode mode_;
  std::size_t round_ = 0;
  std::map<std::string, std::pair<MeasuredCompute, CrowdedRounds>> compute_;
  Samples<MeasuredTransfer> transfers_;
  Samples<MeasuredCopy> copies_;
  Samples<MeasuredIssue> issue_;
  Rounds turnaround_;
};

}  // namespace steptwin
