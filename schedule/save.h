// A checkpoint save as a schedule of its own (run.task "save"; specs/bmtrain.md 9.5, B-F27): every parameter comes to the host memory
// of one rank, the first of the first stage, which then has the model's state dict in the type that the ranks compute in. Purely
// sequential.
//
// Beside the resident buffers of a training step (parameters, gradients, optimizer states, ids) there are, on the rank that saves,
// resident pageable buffers, one a unit, allocated as the save reaches them and kept. Parameters go in the order of the network, unit
// by unit: a layer is a unit, and so is every parameter of the embedding and the head. A tied table is saved once.
//
//   all ranks of the unit's stage    load: all-gather of what is sharded (ZeRO level 3), one group a unit
//   rank that saves, of its stage    down: a copy of each parameter to the host, which waits for it, as copies to pageable memory do
//   first rank of a later stage      pipe: a send of each parameter; behind the last one the host waits
//   rank that saves, meanwhile       pipe: a receive of each parameter into a device buffer; down: its copy; the host waits
//
// So the device holds, beside the state, one gathered unit, or on the rank that saves one received parameter. Shapes are static: no
// metadata. The other replicas gather with the first one and do nothing else; at levels 0 to 2 they have no ops. In the pipeline form
// bmtrain all ranks gather the embedding's and the head's parameters and the rank that saves copies them: nothing of these is sent.
#pragma once

#include "schedule/ir/schedule.h"
#include "schedule/mechanisms/plan.h"

namespace steptwin {

// What the saved buffers' names and layouts begin with: "saved.layers.3", "saved.head.norm.weight".
inline constexpr const char* kSavedPrefix = "saved.";

Schedule save_schedule(const Plan& plan);

}  // namespace steptwin
