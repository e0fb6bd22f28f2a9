// Analytic costs of a machine: roofline for compute, alpha-beta for communication, links and disks for copies. Each op's time is summed
// in double and becomes nanoseconds once. Ops that state their duration keep it.
#pragma once

#include "sim/cost/cost_model.h"

namespace steptwin {

class AnalyticCosts final : public CostModel {
 public:
  explicit AnalyticCosts(const Machine& machine) : machine_(machine) {}

  std::string name() const override { return "analytic"; }
  ComputeScope compute_scope() const override { return ComputeScope::Work; }
  Cost compute(const Schedule& schedule, const Program& program, const Op& op) const override;
  Cost copy(const Schedule& schedule, const Program& program, OpId op) const override;
  Cost communicate(const Schedule& schedule, const Program& program, const Op& op, const CommShape& shape) const override;
  // Compute: one kernel_launch per kernel, the op may start after the first. Communication and copies: one transfer_launch (the
  // engine charges a group once). HostWait: 0.
  Launch launch(const Schedule& schedule, const Op& op) const override;

 private:
  Machine machine_;
};

}  // namespace steptwin
