// Only durations that ops state themselves (Op::given); everything else costs 0. For schedule texts without a machine.
#pragma once

#include "sim/cost/cost_model.h"

namespace steptwin {

class StatedCosts final : public CostModel {
 public:
  std::string name() const override { return "stated"; }
  Cost compute(const Schedule& schedule, const Program& program, const Op& op) const override;
  Cost copy(const Schedule& schedule, const Program& program, OpId op) const override;
  Cost communicate(const Schedule& schedule, const Program& program, const Op& op, const CommShape& shape) const override;
  Launch launch(const Schedule&, const Op&) const override { return {}; }
};

}  // namespace steptwin
