// Times that calibration measured (schedule/machine/measured.h), else analytic ones. Per duration:
//   a row of exactly this shape                              its time                                        Measured
//   rows of the same family below and above it               log-log line between the two neighbours         Interpolated
//   otherwise (outside the measured range, or unknown)       the analytic model of the machine               Analytic
// Nothing is extrapolated. The family of a compute op: segment, phase, engine, kinds and types of its kernels; its size is in flops (in
// bytes where it has none), and its bytes must lie between those of the neighbours too. Of a transfer: kind, members and how they lie on
// nodes, type where it calculates. Of a copy: spaces and cast. The size of both is in bytes. An op of several parts is the sum of its
// parts, with the weakest provenance among them. Launch: where one thread does everything (Host::slot_scope) issuing is part of the
// turnaround and costs nothing here; else the measured issue cost of the kind, else the analytic one.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/cost/analytic.h"

namespace steptwin {

class MeasuredCosts final : public CostModel {
 public:
  explicit MeasuredCosts(const Machine& machine);  // InternalError when it holds no measured tables

  std::string name() const override { return "measured"; }
  Provenance promises() const override { return Provenance::Interpolated; }
  ComputeScope compute_scope() const override { return ComputeScope::Parts; }
  Cost compute(const Schedule& schedule, const Program& program, const Op& op) const override;
  Cost copy(const Schedule& schedule, const Program& program, OpId op) const override;
  Cost communicate(const Schedule& schedule, const Program& program, const Op& op, const CommShape& shape) const override;
  Launch launch(const Schedule& schedule, const Op& op) const override;

 private:
  struct Point {
    double size = 0, bytes = 0;
    Duration time{0};
  };
  using Family = std::vector<Point>;  // ascending by (size, bytes)
  void add(std::string exact, std::string family, Point point);
  std::optional<Cost> find(const std::string& exact, const std::string& family, double size, double bytes) const;
  std::optional<Cost> part_cost(const Schedule& schedule, const ComputePart& part, const char* engine) const;

  AnalyticCosts analytic_;
  bool issue_is_turnaround_ = false;
  std::unordered_map<std::string, Duration> exact_;
  std::unordered_map<std::string, Family> families_;
  std::map<std::string, Duration, std::less<>> issue_;
};

}  // namespace steptwin
