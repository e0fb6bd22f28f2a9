#include "schedule/base/dtype.h"

namespace steptwin {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::Fp32: return "fp32";
    case DType::Bf16: return "bf16";
    case DType::Fp16: return "fp16";
    case DType::Int64: return "int64";
    case DType::Int32: return "int32";
    case DType::Uint8: return "uint8";
  }
  return "?";
}

}  // namespace steptwin
