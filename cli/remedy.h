// Changes of a scenario that make it fit into memory, each one tried: compiled, its peak taken, and simulated.
#pragma once

#include <string>
#include <vector>

#include "cli/subject.h"
#include "sim/simulate.h"

namespace steptwin {

struct Remedy {
  std::string text;  // "activation recompute"
  std::vector<Override> overrides;
  Bytes peak;                 // largest allocated bytes of a rank with it
  std::string flags() const;  // "--set recompute.mode=full"
};

// At most two, cheapest first (see remedy.cpp for the list that is tried); empty when nothing on the list suffices.
std::vector<Remedy> find_remedies(const SubjectRequest& request, const Scenario& scenario);

}  // namespace steptwin
