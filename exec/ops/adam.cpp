// Adam (Kingma and Ba 2015, algorithm 1), without weight decay, on a segment's whole buffers. fp32 arithmetic element by element, + - * /
// and sqrt only: equal inputs give equal bits wherever they lie, so copies of a tied table stay equal.
#include "exec/ops/adam.h"

#include <algorithm>
#include <cmath>

#include "exec/ops/elements.h"
#include "exec/ops/segments.h"

namespace steptwin {
namespace {

// A buffer of parameters: its layout is packed and of one type.
struct Flat {
  std::byte* data = nullptr;
  DType type = DType::Fp32;
  std::int64_t elements = 0;
  std::byte* at(std::int64_t element) const { return data + element * size_of(type); }
};

Flat flat(const Operands& operands, const BoundAccess& access) {
  if (access.layout == nullptr || access.layout->tensors.empty()) operands.fail("an operand of Adam has no layout");
  const DType type = access.layout->tensors.front().dtype;
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : access.layout->tensors) {
    if (tensor.dtype != type || tensor.offset.value != bytes)
      operands.fail("Adam needs packed tensors of one type, layout " + access.layout->name + " is not");
    bytes += tensor.bytes().value;
  }
  if (access.part.kind != Part::Kind::Whole || bytes != access.bytes) operands.fail("Adam updates whole buffers");
  return {access.data, type, bytes / size_of(type)};
}

// beta^step by squaring: no libm, the same bits everywhere.
double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 != 0) result *= base;
  }
  return result;
}

struct Factors {
  float step_size = 0, second_correction = 0;  // lr / (1 - beta1^t); 1 / (1 - beta2^t)
};

void update_block(const float* g, float* w, float* m, float* v, std::int64_t count, Factors f) {
  constexpr auto b1 = static_cast<float>(kAdamBeta1), b2 = static_cast<float>(kAdamBeta2), eps = static_cast<float>(kAdamEpsilon);
  constexpr auto c1 = static_cast<float>(1 - kAdamBeta1), c2 = static_cast<float>(1 - kAdamBeta2);
  for (std::int64_t i = 0; i < count; ++i) {
    m[i] = b1 * m[i] + c1 * g[i];
    v[i] = b2 * v[i] + c2 * g[i] * g[i];
    w[i] -= f.step_size * m[i] / (std::sqrt(v[i] * f.second_correction) + eps);
  }
}

struct Buffers {
  Flat gradient, param, weight, first, second;  // weight: the master, or the parameter itself
};

void update_all(const Buffers& b, Factors factors) {
  float g[kBlock], w[kBlock], m[kBlock], v[kBlock];
  for (std::int64_t first = 0; first < b.param.elements; first += kBlock) {
    const std::int64_t count = std::min(kBlock, b.param.elements - first);
    load_block(b.gradient.at(first), b.gradient.type, count, g);
    load_block(b.weight.at(first), b.weight.type, count, w);
    load_block(b.first.at(first), b.first.type, count, m);
    load_block(b.second.at(first), b.second.type, count, v);
    update_block(g, w, m, v, count, factors);
    store_block(w, count, b.weight.at(first), b.weight.type);
    store_block(m, count, b.first.at(first), b.first.type);
    store_block(v, count, b.second.at(first), b.second.type);
    if (b.weight.data != b.param.data) store_block(w, count, b.param.at(first), b.param.type);
  }
}

}  // namespace

void adam(Operands& operands) {
  Buffers b;
  b.gradient = flat(operands, operands.read("G"));
  b.param = b.weight = flat(operands, operands.update("P"));
  const Flat second = flat(operands, operands.update("master or m")), third = flat(operands, operands.update("m or v"));
  const bool has_master = operands.next_is(AccessMode::Update);
  b.first = has_master ? third : second;
  b.second = has_master ? flat(operands, operands.update("v")) : third;
  if (has_master) b.weight = second;
  operands.finish();
  for (const Flat& f : {b.gradient, b.weight, b.first, b.second}) {
    if (f.elements != b.param.elements) operands.fail("the buffers of Adam differ in elements");
  }
  const std::int64_t t = operands.step().step;
  if (t < 1) operands.fail("Adam counts its steps from 1");
  update_all(b, {static_cast<float>(kAdamLearningRate / (1 - power(kAdamBeta1, t))), static_cast<float>(1 / (1 - power(kAdamBeta2, t)))});
}

}  // namespace steptwin
