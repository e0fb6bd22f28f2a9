// Initial parameters: integers and + - * / sqrt only, so every platform draws the same bits. Element i depends on (name, seed, i) alone.
#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>
#include <vector>

#include "exec/ops/compute.h"
#include "exec/ops/elements.h"
#include "exec/ops/random_words.h"

namespace steptwin {
namespace {

constexpr std::int64_t kBlocksPerWorker = 4096;  // a million elements: below, starting a thread costs more than it saves
constexpr double kWeightDeviation = 0.02;  // as GPT-2 and its descendants draw them

// Nearly normal: the sum of n = 8 uniform 16-bit numbers, minus its mean n (2^16 - 1) / 2, over its deviation sqrt(n (2^32 - 1) / 12).
// Bounded by 4.9.
float normal(std::uint64_t stream, std::int64_t element) {
  std::int64_t sum = 0;
  for (std::uint64_t half = 0; half < 2; ++half) {
    const std::uint64_t bits = random_word(stream, 2 * static_cast<std::uint64_t>(element) + half);
    for (int shift = 0; shift < 64; shift += 16) sum += static_cast<std::int64_t>((bits >> shift) & 0xffffu);
  }
  const double deviation = std::sqrt(8.0 * (4294967296.0 - 1.0) / 12.0);
  return static_cast<float>((static_cast<double>(sum) - 8.0 * 65535.0 / 2.0) / deviation * kWeightDeviation);
}

float value_of(std::string_view name, std::uint64_t stream, std::int64_t element) {
  if (name.ends_with(".bias")) return 0;
  if (name.ends_with("norm.weight")) return 1;
  return normal(stream, element);
}

}  // namespace

void initialise_parameter(const std::string& name, const TensorSpec& tensor, std::byte* data, std::uint64_t seed) {
  const std::uint64_t stream = stream_of(name, seed);
  const std::int64_t elements = tensor.bytes().value / size_of(tensor.dtype), blocks = (elements + kBlock - 1) / kBlock;
  const auto workers = std::clamp<std::int64_t>(blocks / kBlocksPerWorker, 1, std::max(1u, std::thread::hardware_concurrency()));
  const auto draw = [&](std::int64_t worker) {
    float values[kBlock];
    for (std::int64_t block = worker; block < blocks; block += workers) {
      const std::int64_t first = block * kBlock, count = std::min(kBlock, elements - first);
      for (std::int64_t i = 0; i < count; ++i) values[i] = value_of(name, stream, first + i);
      store_block(values, count, data + first * size_of(tensor.dtype), tensor.dtype);
    }
  };
  std::vector<std::jthread> others;
  for (std::int64_t worker = 1; worker < workers; ++worker) others.emplace_back(draw, worker);
  draw(0);
}

}  // namespace steptwin
