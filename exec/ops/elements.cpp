#include "exec/ops/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "exec/ops/compute.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // stays a NaN
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// 1 sign, 5 exponent (bias 15), 10 mantissa bits.
float from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -tiny : tiny;
}

std::uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                                                    // below 2^-14: multiples of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(scaled)));
  }
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

template <class Function>
void load_16(const std::byte* from, std::int64_t count, float* values, Function widen) {
  std::uint16_t raw[kBlock];
  std::memcpy(raw, from, static_cast<std::size_t>(2 * count));
  for (std::int64_t i = 0; i < count; ++i) values[i] = widen(raw[i]);
}

template <class Function>
void store_16(const float* values, std::int64_t count, std::byte* to, Function narrow) {
  std::uint16_t raw[kBlock];
  for (std::int64_t i = 0; i < count; ++i) raw[i] = narrow(values[i]);
  std::memcpy(to, raw, static_cast<std::size_t>(2 * count));
}

// Integers add exactly (modulo their width).
template <class Unsigned>
void add_integers(std::byte* into, const std::byte* from, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    Unsigned a, b;
    std::memcpy(&a, into + i * static_cast<std::int64_t>(sizeof a), sizeof a);
    std::memcpy(&b, from + i * static_cast<std::int64_t>(sizeof b), sizeof b);
    a = static_cast<Unsigned>(a + b);
    std::memcpy(into + i * static_cast<std::int64_t>(sizeof a), &a, sizeof a);
  }
}

void add_reals(std::byte* into, const std::byte* from, std::int64_t elements, DType type) {
  float a[kBlock], b[kBlock];
  for (std::int64_t first = 0; first < elements; first += kBlock) {
    const std::int64_t count = std::min(kBlock, elements - first), offset = first * size_of(type);
    load_block(into + offset, type, count, a);
    load_block(from + offset, type, count, b);
    for (std::int64_t i = 0; i < count; ++i) a[i] += b[i];
    store_block(a, count, into + offset, type);
  }
}

}  // namespace

void load_block(const std::byte* from, DType type, std::int64_t count, float* values) {
  switch (type) {
    case DType::Fp32:
      std::memcpy(values, from, static_cast<std::size_t>(4 * count));
      return;
    case DType::Bf16:
      return load_16(from, count, values, from_bf16);
    case DType::Fp16:
      return load_16(from, count, values, from_fp16);
    case DType::Int64:
    case DType::Int32:
    case DType::Uint8:
      break;
  }
  throw InternalError("load_block: an integer type");
}

void store_block(const float* values, std::int64_t count, std::byte* to, DType type) {
  switch (type) {
    case DType::Fp32:
      std::memcpy(to, values, static_cast<std::size_t>(4 * count));
      return;
    case DType::Bf16:
      return store_16(values, count, to, to_bf16);
    case DType::Fp16:
      return store_16(values, count, to, to_fp16);
    case DType::Int64:
    case DType::Int32:
    case DType::Uint8:
      break;
  }
  throw InternalError("store_block: an integer type");
}

void add_into(std::byte* into, const std::byte* from, std::int64_t elements, DType dtype) {
  switch (dtype) {
    case DType::Fp32:
    case DType::Bf16:
    case DType::Fp16:
      return add_reals(into, from, elements, dtype);
    case DType::Int64:
      return add_integers<std::uint64_t>(into, from, elements);
    case DType::Int32:
      return add_integers<std::uint32_t>(into, from, elements);
    case DType::Uint8:
      return add_integers<std::uint8_t>(into, from, elements);
  }
}

void convert(std::byte* to, DType to_type, const std::byte* from, DType from_type, std::int64_t elements) {
  if (to_type == from_type) {
    std::memmove(to, from, static_cast<std::size_t>(elements * size_of(to_type)));
    return;
  }
  float values[kBlock];
  for (std::int64_t first = 0; first < elements; first += kBlock) {
    const std::int64_t count = std::min(kBlock, elements - first);
    load_block(from + first * size_of(from_type), from_type, count, values);
    store_block(values, count, to + first * size_of(to_type), to_type);
  }
}

}  // namespace steptwin
