// Element types of tensors and messages.
#pragma once

#include <cstdint>

namespace steptwin {

enum class DType : std::uint8_t { Fp32, Bf16, Fp16, Int64, Int32, Uint8 };
inline constexpr std::size_t kDTypes = 6;

constexpr std::int64_t size_of(DType t) {
  switch (t) {
    case DType::Fp32: case DType::Int32: return 4;
    case DType::Bf16: case DType::Fp16: return 2;
    case DType::Int64: return 8;
    case DType::Uint8: return 1;
  }
  return 0;
}
const char* name_of(DType dtype);  // "fp32", "bf16", "fp16", "int64", "int32", "uint8"

}  // namespace steptwin
