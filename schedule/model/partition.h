// Which layers a pipeline stage holds. Layers of a block (ModelShape::layers_per_block) share their parameters, so they stand on one stage.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/model/model.h"

namespace steptwin {

std::int64_t block_count(const ModelShape& model);
// Blocks alike on all stages, the remainder on the first ones, as BMTrain's and Megatron's default (specs/bmtrain.md 9.1); layers per stage.
std::vector<std::int64_t> default_partition(const ModelShape& model, std::int64_t stages);
// The first stage that begins in the middle of a block; none when all layers of a block stand on one stage.
std::optional<std::size_t> stage_inside_block(const ModelShape& model, const std::vector<std::int64_t>& layers_per_stage);

}  // namespace steptwin
