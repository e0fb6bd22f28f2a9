// Where messages stand in the lists of compute actions.
#pragma once

#include "schedule/orders/orders.h"
#include "schedule/scenario.h"

namespace steptwin {

// RECV directly before its consumer, SEND directly behind its producer. When a pair of ranks would then see its messages in different
// order at both ends (possible with several stages on a rank), for one_lane always and for messages on the compute lane unless all ranks
// walk through the same actions (1F1B with blocking transfers on one queue deadlocks otherwise), one global order is used:
// lower_messages() of orders.h. Lists that cannot be given a global order because they wait in a circle keep the direct placement: verify()
// then explains the deadlock. A grid that has messages is returned as it is. The grid passes check_actions().
ActionGrid place_messages(const ActionGrid& grid, P2pMode mode);

}  // namespace steptwin
