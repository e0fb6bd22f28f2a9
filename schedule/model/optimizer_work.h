// Work outside the network: Adam, gradient accumulation, casts, fills, norms of flat groups. Each is one kernel bound by memory traffic
// (a fused multi-tensor kernel over the flat group), so the bytes count. Sizes in elements, > 0.
#pragma once

#include <cstdint>

#include "schedule/base/dtype.h"
#include "schedule/ir/op.h"

namespace steptwin {

struct AdamPrecision {
  DType parameter = DType::Bf16;  // what forward and backward read
  DType master = DType::Fp32;     // equal to `parameter`: there is no separate master copy
  DType gradient = DType::Fp32;
  DType moments = DType::Fp32;    // m and v
};
// Reads the gradient; reads and writes m, v and the master value; writes the parameter when it is a copy of its own.
Work adam_work(std::int64_t elements, const AdamPrecision& precision = {});
// Optimizer state that stays in memory beside parameter and gradient: m, v and the master copy, if separate.
Bytes adam_state_bytes(std::int64_t elements, const AdamPrecision& precision = {});

Work accumulate_work(std::int64_t elements, DType from, DType into);  // into += from
Work cast_work(std::int64_t elements, DType from, DType to);          // to = from
Work fill_work(std::int64_t elements, DType type);                    // type = 0
Work scale_work(std::int64_t elements, DType type);                   // type *= factor
Work check_work(std::int64_t elements, DType type);                   // one pass of reading: overflow check or sum of squares

}  // namespace steptwin
