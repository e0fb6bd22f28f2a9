// Blocks of elements as fp32 (private to exec/ops): the one place that knows the bits of the 16-bit types. No torch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "schedule/base/dtype.h"

namespace steptwin {

inline constexpr std::int64_t kBlock = 256;  // elements: a constant trip count lets the loops be vectorised

// Reads or writes up to kBlock elements. Narrowing rounds to nearest, ties to even. Throws InternalError for an integer type.
void load_block(const std::byte* from, DType type, std::int64_t count, float* values);
void store_block(const float* values, std::int64_t count, std::byte* to, DType type);

}  // namespace steptwin
