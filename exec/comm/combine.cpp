// Element-wise sums and maxima in a fixed order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "exec/comm/local.h"

namespace steptwin {
namespace {

template <class T>
T load(const std::byte* from, std::int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store(std::byte* to, std::int64_t i, T value) {
  std::memcpy(to + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

// How a stored element becomes the number that is added, and back.
template <class T>
struct Plain {
  using Number = T;
  static T read(const std::byte* from, std::int64_t i) { return load<T>(from, i); }
  static void write(std::byte* to, std::int64_t i, T value) { store(to, i, value); }
};

// The upper half of an fp32; rounded to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  using Number = float;
  static float read(const std::byte* from, std::int64_t i) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(from, i)) << 16);
  }
  static void write(std::byte* to, std::int64_t i, float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) return store<std::uint16_t>(to, i, 0x7fc0);
    store(to, i, static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16));
  }
};

// IEEE 754 binary16.
struct Half {
  using Number = float;
  static float read(const std::byte* from, std::int64_t i) {
    const std::uint32_t h = load<std::uint16_t>(from, i);
    const std::uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
    if (exponent == 0) {  // zero and subnormals: fraction * 2^-24
      const float value = std::ldexp(static_cast<float>(fraction), -24);
      return sign != 0 ? -value : value;
    }
    const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
    return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
  }
  static void write(std::byte* to, std::int64_t i, float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    std::uint32_t bits = 0;
    if (std::isnan(value)) {
      bits = 0x7e00;
    } else if (size >= 65520.0f) {  // half a step above the largest number
      bits = 0x7c00;
    } else if (size < 0x1p-14f) {  // subnormal: multiples of 2^-24; nearbyint rounds ties to even
      bits = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 24)));
    } else {
      const auto f = std::bit_cast<std::uint32_t>(size);
      bits = ((f + 0xfffu + ((f >> 13) & 1u)) >> 13) - (112u << 10);
    }
    store(to, i, static_cast<std::uint16_t>(bits | sign));
  }
};

template <class Format, class Op>
void combine_as(std::byte* to, const std::vector<const std::byte*>& from, std::int64_t elements, Op op) {
  for (std::int64_t i = 0; i < elements; ++i) {
    typename Format::Number value = Format::read(from[0], i);
    for (std::size_t k = 1; k < from.size(); ++k) value = op(value, Format::read(from[k], i));
    Format::write(to, i, value);
  }
}

template <class Format>
void combine_in(std::byte* to, const std::vector<const std::byte*>& from, std::int64_t elements, Combine how) {
  using Number = typename Format::Number;
  if (how == Combine::Sum) return combine_as<Format>(to, from, elements, [](Number a, Number b) { return static_cast<Number>(a + b); });
  combine_as<Format>(to, from, elements, [](Number a, Number b) { return a < b || b != b ? b : a; });
}

}  // namespace

void combine(std::byte* to, const std::vector<const std::byte*>& from, std::int64_t elements, DType dtype, Combine how) {
  switch (dtype) {
    case DType::Fp32: return combine_in<Plain<float>>(to, from, elements, how);
    case DType::Bf16: return combine_in<BFloat16>(to, from, elements, how);
    case DType::Fp16: return combine_in<Half>(to, from, elements, how);
    case DType::Int64: return combine_in<Plain<std::int64_t>>(to, from, elements, how);
    case DType::Int32: return combine_in<Plain<std::int32_t>>(to, from, elements, how);
    case DType::Uint8: return combine_in<Plain<std::uint8_t>>(to, from, elements, how);
  }
}

}  // namespace steptwin
