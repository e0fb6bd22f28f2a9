// The four segments, one file each (private to schedule/model); segment_cost in segment.cpp is the door.
#pragma once

#include <vector>

#include "schedule/model/kernels.h"
#include "schedule/model/model.h"

namespace steptwin {

SegmentCost embedding_segment(const ModelShape& model, const Sizes& z, const WantedGradients& wanted);
SegmentCost attention_segment(const ModelShape& model, const Sizes& z, const WantedGradients& wanted);
SegmentCost mlp_segment(const ModelShape& model, const Sizes& z, const WantedGradients& wanted);
SegmentCost head_segment(const ModelShape& model, const Sizes& z, const WantedGradients& wanted);

// A residual half of a layer: y = x + dropout(out(core(in(norm(x))))). Several `in` projections share the norm's output.
struct HalfLayer {
  const char* name = "";
  std::vector<Linear> in;
  std::vector<Kernel> core_forward, core_input_grad;
  Linear out;
};
HalfLayer attention_half(const ModelShape& model, const Sizes& z);
HalfLayer mlp_half(const ModelShape& model, const Sizes& z);

// How far down the gradient of y goes for what is wanted: past the core for the input projections' parameters, past these for the norm's
// and for x.
struct Depth {
  bool core = true, norm = true;
};
Depth depth_of(const ModelShape& model, const HalfLayer& half, const WantedGradients& wanted);
bool wants_weight_of_in(const HalfLayer& half, const WantedGradients& wanted);  // of one of them

// Sets the three works, keeps_input, output_bytes and kept (x and dy of the projections, the norm's sums, as far as W needs them).
void set_half_layer(const ModelShape& model, const Sizes& z, const HalfLayer& half, const WantedGradients& wanted, SegmentCost& cost);

}  // namespace steptwin
