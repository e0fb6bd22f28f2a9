// CostModel: how long an op takes on a machine. Implementations: roofline + alpha_beta (analytic), given (the user's stage
// times), measured (calibration tables). Pure functions of their arguments; no state changes after construction.
#pragma once

#include <memory>

#include "schedule/ir/matching.h"
#include "schedule/ir/schedule.h"
#include "schedule/machine/machine.h"
#include "traces/trace.h"

namespace steptwin {

struct Cost {
  Duration duration{0};
  Provenance provenance = Provenance::Analytic;
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual std::string name() const = 0;
  // The weakest provenance a user of this model expects; a run says how many of its ops have a weaker one.
  virtual Provenance promises() const { return Provenance::Given; }
  // What the device time of a compute op depends on, so that pricing may ask once for many ops.
  enum class ComputeScope : std::uint8_t {
    Work,   // only on the works of its parts and the engine of its lane (an op that states its duration aside)
    Parts,  // also on their segments and phases
    Op,     // on the op itself
  };
  virtual ComputeScope compute_scope() const { return ComputeScope::Op; }
  // Device time of a compute op of `program` (all its parts) or of a copy.
  virtual Cost compute(const Schedule& schedule, const Program& program, const Op& op) const = 0;
  virtual Cost copy(const Schedule& schedule, const Program& program, OpId op) const = 0;
  // Time of a collective or message once all members are ready. op = the op of any member, or a copy with the bytes of its group.
  virtual Cost communicate(const Schedule& schedule, const Program& program, const Op& op, const CommShape& shape) const = 0;
  // Host issue cost of an op: whole cost, and the part until the op may start (its first launch).
  struct Launch { Duration total{0}, first{0}; };
  virtual Launch launch(const Schedule& schedule, const Op& op) const = 0;
};

}  // namespace steptwin
