// The orders that steptwin builds itself: one file each (NAME.cpp), one row each in the table of orders.cpp.
// Every maker promises: rank r lists the actions of its stages in issue order, check_actions() finds nothing.
// A maker throws InputError for options it cannot serve, naming the numbers.
#pragma once

#include "schedule/orders/orders.h"

namespace steptwin {

// Fill-drain, specs/schedules.md 2.1: F 0..m-1, then B 0..m-1 (or m-1..0).
ActionGrid make_gpipe(const OrderOptions& options);
// PipeDream-flush with an optional warm-up vector, specs/schedules.md 2.2 and 2.3.
ActionGrid make_one_f_one_b(const OrderOptions& options);

// Throws InputError unless p >= 1 and m >= 1.
void require_positive(const OrderOptions& options, const char* order);

}  // namespace steptwin
