// Op temporaries of LibTorch: counts what its CPU allocator hands out. IR buffers do not come from it (buffer_pool.h), so what is counted
// is workspace. LibTorch has one allocator a process, hence the one piece of global state of this module.
#pragma once

#include <cstdint>

namespace steptwin {

void install_workspace_meter();          // once, before the first tensor
void reset_workspace_peak();             // what is allocated now counts as zero
std::int64_t workspace_peak();           // largest level since the reset, bytes

}  // namespace steptwin
