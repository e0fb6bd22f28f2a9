// The four segments, one file each (private to schedule/model); segment_cost in segment.cpp is the door.
#pragma once

#include <vector>

#include "schedule/model/kernels.h"
#include "schedule/model/model.h"

namespace steptwin {

SegmentCost embedding_segment(const ModelShape& model, const Sizes& z);
SegmentCost attention_segment(const ModelShape& model, const Sizes& z);
SegmentCost mlp_segment(const ModelShape& model, const Sizes& z);
SegmentCost head_segment(const ModelShape& model, const Sizes& z);

// A residual half of a layer: y = x + dropout(out(core(in(norm(x))))). Several `in` projections share the norm's output.
struct HalfLayer {
  std::vector<Linear> in;
  std::vector<Kernel> core_forward, core_input_grad;
  Linear out;
};
// Sets the three works, keeps_input, output_bytes and kept_for_weight_grad (x and dy of every projection, the norm's sums).
void set_half_layer(const ModelShape& model, const Sizes& z, const HalfLayer& half, SegmentCost& cost);

}  // namespace steptwin
