// BMTrain's sqrt checkpoint list (specs/bmtrain.md 7): of L layers in a row only some keep their input. In backward a layer without one is
// reached by forwarding again from the layer it restarts from; what that yields overwrites slots of layers that are done.
#pragma once

#include <cstdint>
#include <vector>

namespace steptwin {

struct SqrtEntry {
  std::int32_t restart = 0;  // the layer's own number: its input is saved in the forward
  std::int32_t slot = 0;     // where its input stands, from the forward on or once it is computed again
  bool operator==(const SqrtEntry&) const = default;
};

// [layer]; layers >= 1. Groups of 1, 2, 3, ... layers counted from the last one, each with its first layer saved; layer 0 always is.
std::vector<SqrtEntry> sqrt_list(std::int32_t layers);

// What the backward does in turn.
struct SqrtStep {
  std::int32_t layer = 0;
  std::int32_t into_slot = -1;  // >= 0: forward again, the output goes there; -1: recompute and backward
  bool operator==(const SqrtStep&) const = default;
};
std::vector<SqrtStep> sqrt_backward(const std::vector<SqrtEntry>& list);

}  // namespace steptwin
