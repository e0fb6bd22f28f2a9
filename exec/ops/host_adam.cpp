#include <algorithm>
#include <cmath>

#include "exec/ops/adam.h"
#include "exec/ops/elements.h"

namespace steptwin {
namespace {

void update_block(const float* g, float* w, float* m, float* v, std::int64_t count, AdamFactors f) {
  constexpr auto b1 = static_cast<float>(kAdamBeta1), b2 = static_cast<float>(kAdamBeta2), eps = static_cast<float>(kAdamEpsilon);
  constexpr auto c1 = static_cast<float>(1 - kAdamBeta1), c2 = static_cast<float>(1 - kAdamBeta2);
  for (std::int64_t i = 0; i < count; ++i) {
    m[i] = b1 * m[i] + c1 * g[i];
    v[i] = b2 * v[i] + c2 * g[i] * g[i];
    w[i] -= f.step_size * m[i] / (std::sqrt(v[i] * f.second_correction) + eps);
  }
}

}  // namespace

void adam_on_host(const AdamBuffers& b, AdamFactors factors) {
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

}  // namespace steptwin
