// The user's stage times (schedule/machine/given_cost.h), shared over the compute ops of the schedule at construction.
//
// A set of ops shares one time: the ops (or parts of them) of the same program, chunk, phase and micro-batch share their stage's time of
// that phase; the U ops of one stage share its optimizer time. Each gets the time times its part of the set's flops (of its bytes
// where the set has no flops), rounded down; the last one in issue order gets the remainder, so the sum is exact.
//   F, R: forward.  I: input_grad.  W: weight_grad.  B: input_grad + weight_grad.  U: optimizer.  Other compute: 0.
// Every message costs p2p; collectives, copies and launches 0. Ops that state their duration keep it and share nothing.
// Invariant: the schedule that is asked about is the one of construction (or an equal copy); ops are elements of its `ops`.
#pragma once

#include <vector>

#include "schedule/machine/given_cost.h"
#include "sim/cost/cost_model.h"

namespace steptwin {

class GivenCosts final : public CostModel {
 public:
  // Throws InternalError when a stage of the schedule has no time.
  GivenCosts(const GivenCost& given, const Schedule& schedule);

  std::string name() const override { return "given"; }
  Cost compute(const Schedule& schedule, const Program& program, const Op& op) const override;
  Cost copy(const Schedule& schedule, const Program& program, OpId op) const override;
  Cost communicate(const Schedule& schedule, const Program& program, const Op& op, const CommShape& shape) const override;
  Launch launch(const Schedule&, const Op&) const override { return {}; }

 private:
  std::vector<Duration> durations_;  // [op]
  Duration p2p_{0};
};

}  // namespace steptwin
