// Where messages stand in the lists of compute actions.
#pragma once

#include "schedule/orders/orders.h"
#include "schedule/scenario.h"

namespace steptwin {

// RECV directly before its consumer, SEND directly behind its producer. When a pair of ranks would then see its messages in different order
// at both ends (possible with several stages on a rank) and for one_lane always, one global order is used: lower_messages() of orders.h. On
// the compute lane messages block: unless all ranks walk through the same actions, a RECV_F stands before the SEND_B that it would directly
// follow (1F1B deadlocks otherwise), and where that hangs, too, the global order is used. Lists that cannot be given a global order because
// they wait in a circle keep the direct placement: verify() then explains the deadlock. A grid that has messages is returned as it is. The
// grid passes check_actions().
ActionGrid place_messages(const ActionGrid& grid, P2pMode mode);

}  // namespace steptwin
