#include "schedule/model/optimizer_work.h"

#include "schedule/model/kernels.h"

namespace steptwin {
namespace {

// Two moment updates (3 each), two bias corrections, square root, division, decay, step: rounded. Never the bound.
constexpr std::int64_t kAdamFlops = 14;

bool has_master(const AdamPrecision& p) { return p.master != p.parameter; }

}  // namespace

Work adam_work(std::int64_t elements, const AdamPrecision& p) {
  const std::int64_t copy = has_master(p) ? size_of(p.parameter) : 0;
  const std::int64_t per_element = size_of(p.gradient) + 4 * size_of(p.moments) + 2 * size_of(p.master) + copy;
  return {{stream_kernel(p.master, elements, kAdamFlops, Bytes(elements * per_element))}};
}

Bytes adam_state_bytes(std::int64_t elements, const AdamPrecision& p) {
  return Bytes(elements * (2 * size_of(p.moments) + (has_master(p) ? size_of(p.master) : 0)));
}

Work accumulate_work(std::int64_t elements, DType from, DType into) {
  return {{stream_kernel(into, elements, 1, Bytes(elements * (size_of(from) + 2 * size_of(into))))}};
}

Work cast_work(std::int64_t elements, DType from, DType to) {
  return {{stream_kernel(to, elements, 1, Bytes(elements * (size_of(from) + size_of(to))))}};
}

Work fill_work(std::int64_t elements, DType type) { return {{stream_kernel(type, elements, 0, Bytes(elements * size_of(type)))}}; }

Work scale_work(std::int64_t elements, DType type) { return {{stream_kernel(type, elements, 1, Bytes(2 * elements * size_of(type)))}}; }

Work check_work(std::int64_t elements, DType type) { return {{stream_kernel(type, elements, 2, Bytes(elements * size_of(type)))}}; }

}  // namespace steptwin
