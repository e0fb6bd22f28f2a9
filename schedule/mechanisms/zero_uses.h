// When the units of zero_storage.h are used: the visits of a rank cut into runs that enter one unit and leave it again.
#pragma once

#include "schedule/mechanisms/zero_storage.h"

namespace steptwin {

struct ZeroUse {
  enum class Kind : std::uint8_t {
    Forward,
    Again,     // forward again of a block whose backward is not next: no gradients
    Backward,  // with the recomputation of the same unit before it, if there is one
  };
  Kind kind = Kind::Forward;
  std::size_t first = 0, last = 0;  // visits
  std::size_t unit = 0;
  bool reads_parameters = true;  // the embedding's backward reads none
  bool enters = true;            // else an earlier use has entered the unit for this one, too
  bool leaves = true;            // else a later use will leave it
  bool returns = false;          // Forward: a backward use of the unit is to come
  bool ends_list = false;        // the last block of its backward pass (chunk and micro-batch)
  bool ends_gradient = false;    // the step's last backward use of the unit
};

// In visit order. Every use is a run of segment visits of one unit, micro-batch and direction.
std::vector<ZeroUse> zero_uses(const ProgramContext& program, const std::vector<ZeroUnit>& units, const Visits& visits);

}  // namespace steptwin
