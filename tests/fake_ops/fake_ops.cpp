// Stands in for exec/ops (LibTorch) in tests of the CPU backend: every output element, taken as fp32, becomes a small whole number that depends
// on the op and on all its inputs, so that sums are exact and a wrong order or a wrong byte changes the result.
// Segments: "fail" throws, "sleep" takes 5 ms, "nan" writes no number; others as above.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "exec/ops/compute.h"
#include "tests/fake_ops/fake_ops.h"

namespace steptwin {
namespace {

float at(const BoundAccess& access, std::int64_t i) {
  float value;
  std::memcpy(&value, access.data + 4 * i, 4);
  return value;
}

void fill(const BoundAccess& out, std::span<const BoundAccess> operands, std::uint32_t op) {
  const std::int64_t n = std::min<std::int64_t>(out.bytes / 4, 64);  // the rest is 0: enough to tell, and quick
  if (out.mode == AccessMode::Write) std::memset(out.data + 4 * n, 0, static_cast<std::size_t>(out.bytes - 4 * n));
  for (std::int64_t i = 0; i < n; ++i) {
    double sum = static_cast<double>(op % 7 + 1) + static_cast<double>(i % 5);
    if (out.mode == AccessMode::Update) sum += at(out, i);
    for (const BoundAccess& in : operands) {
      if (in.mode != AccessMode::Read || in.category == Category::Input || in.bytes < 4) continue;
      sum += at(in, i % (in.bytes / 4));
    }
    const auto value = static_cast<float>(std::fmod(sum, 64.0));
    std::memcpy(out.data + 4 * i, &value, 4);
  }
}

}  // namespace

void fake_compute(const Schedule& schedule, const Program& program, OpId op, std::span<const BoundAccess> operands) {
  const std::string_view segment = schedule.name(schedule.ops[op.value].label.segment);
  if (segment == "fail") throw std::runtime_error("boom");
  if (segment == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (const BoundAccess& access : operands) {
    if (access.mode != AccessMode::Write && access.mode != AccessMode::Update) continue;
    fill(access, operands, op.value - program.first_op.value);
    if (segment == "nan") std::memset(access.data, 0xff, static_cast<std::size_t>(access.bytes));
  }
}

void initialise_parameter(const std::string& name, const TensorSpec& tensor, std::byte* data, std::uint64_t seed) {
  const auto value = static_cast<float>((name.size() + seed) % 8);
  for (std::int64_t i = 0; i < tensor.bytes().value / 4; ++i) std::memcpy(data + 4 * i, &value, 4);
}

void add_into(std::byte* into, const std::byte* from, std::int64_t elements, DType) {
  for (std::int64_t i = 0; i < elements; ++i) {
    float a, b;
    std::memcpy(&a, into + 4 * i, 4);
    std::memcpy(&b, from + 4 * i, 4);
    a += b;
    std::memcpy(into + 4 * i, &a, 4);
  }
}

void convert(std::byte* to, DType to_type, const std::byte* from, DType from_type, std::int64_t elements) {
  if (to_type == from_type) {
    std::memmove(to, from, static_cast<std::size_t>(elements * size_of(to_type)));
    return;
  }
  const bool widen = to_type == DType::Fp32 && from_type == DType::Bf16, narrow = to_type == DType::Bf16 && from_type == DType::Fp32;
  if (!widen && !narrow) throw std::runtime_error("the fake ops convert between fp32 and bf16 only");
  if (widen) std::memset(to, 0, static_cast<std::size_t>(4 * elements));
  for (std::int64_t i = 0; i < elements; ++i) {  // a bf16 is the upper half of an fp32: exact for small whole numbers
    if (widen) std::memcpy(to + 4 * i + 2, from + 2 * i, 2);
    else std::memcpy(to + 2 * i, from + 4 * i + 2, 2);
  }
}

std::string library_versions() { return "{\"library\": \"fake\"}"; }
void set_up_library(Determinism) {}

}  // namespace steptwin
