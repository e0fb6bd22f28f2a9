// An error on its way up from an op to the caller: it is told where it happened and stays what it is.
#pragma once

#include <string>

namespace steptwin {

// For catch blocks: throws the exception in flight again as "<where>: <what>". Our own errors keep type, kind and help; std::bad_alloc becomes
// an EnvironmentError (Memory), anything else one of kind Device.
[[noreturn]] void rethrow_from(const std::string& where);

}  // namespace steptwin
