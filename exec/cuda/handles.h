// CUDA's handles by name, as its runtime declares them, so that our headers need none of its own.
#pragma once

struct CUstream_st;
struct CUevent_st;

namespace steptwin {

using StreamHandle = CUstream_st*;  // cudaStream_t
using EventHandle = CUevent_st*;    // cudaEvent_t

}  // namespace steptwin
