#include "schedule/model/partition.h"

#include <algorithm>

namespace steptwin {

std::int64_t block_count(const ModelShape& model) { return (model.layers + model.layers_per_block - 1) / model.layers_per_block; }

std::vector<std::int64_t> default_partition(const ModelShape& model, std::int64_t stages) {
  const std::int64_t blocks = block_count(model);
  std::vector<std::int64_t> layers;
  std::int64_t left = model.layers;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    const std::int64_t own = blocks / stages + (stage < blocks % stages ? 1 : 0);
    layers.push_back(std::min(left, own * model.layers_per_block));  // the last block may be short
    left -= layers.back();
  }
  return layers;
}

std::optional<std::size_t> stage_inside_block(const ModelShape& model, const std::vector<std::int64_t>& layers_per_stage) {
  std::int64_t first = 0;
  for (std::size_t stage = 0; stage < layers_per_stage.size(); ++stage) {
    if (first < model.layers && model.first_of_block(first) != first) return stage;
    first += layers_per_stage[stage];
  }
  return std::nullopt;
}

}  // namespace steptwin
