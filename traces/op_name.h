// The short name of an op as timelines and tables show it: "F 3", "adam", "send 3", "AR". Digits carry the micro-batch only, so
// that a viewer that colours by name without digits gives every kind of op its own colour.
#pragma once

#include <string>

#include "schedule/ir/schedule.h"

namespace steptwin {

std::string short_name(const Schedule& schedule, const Op& op);

}  // namespace steptwin
