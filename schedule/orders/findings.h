// Problems of action lists with the cell they belong to, so that a reader can point into its file.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/orders/orders.h"

namespace steptwin {

struct Finding {
  std::size_t rank = 0;      // row of the grid; rows and positions of a grid without the cell point at its end
  std::size_t position = 0;  // in the row
  Diagnostic problem;        // without place
};

inline constexpr std::size_t kMaxFindings = 20;

// Rules 1-4 of specs/schedules.md 1.4 over the compute actions, and for lists that contain messages rule 5: every edge between
// ranks has exactly one SEND behind its producer and one RECV before its consumer. Sorted by cell; at most kMaxFindings.
// n log n in the number of actions; memory does not depend on the numbers named in them.
std::vector<Finding> find_problems(const ActionGrid& grid);

// Appends messages as lower_messages() does; false when the list cannot progress (out is then what was placed).
// The grid passes rules 1-4 and has no messages.
bool place_messages_globally(const ActionGrid& grid, ActionGrid& out);

}  // namespace steptwin
