// An error on its way up from an op to the caller: it is told where it happened and stays what it is.
#pragma once

#include <cstdint>
#include <string>

#include "schedule/ir/schedule.h"

namespace steptwin {

// For catch blocks: throws the exception in flight again as "<where>: <what>". Our own errors keep type, kind and help; std::bad_alloc
// becomes an EnvironmentError (Memory), anything else one of kind Device.
[[noreturn]] void rethrow_from(const std::string& where);
// The same for the op at which it happened: "rank 1 failed at op `...` of step 2".
[[noreturn]] void rethrow_from(const Schedule& schedule, RankId rank, OpId op, std::uint32_t step);

}  // namespace steptwin
