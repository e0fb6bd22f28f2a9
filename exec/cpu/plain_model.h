// The plain single-device model that executions are compared with: the whole batch under LibTorch autograd, no schedule, no hand-written
// backward, an Adam of its own. Of the schedule it takes only what the model is: parameter names, shapes and types, heads, batch, and
// whether there is an optimizer and a master copy. Same initial values and data as the execution (initialise_parameter, DataLoader). A
// 16-bit compute type is LibTorch's own there: norms, softmax and activations in that type, the loss in fp32.
#pragma once

#include "exec/backend.h"

namespace steptwin {

// Losses: mean over the batch, per measured step. Gradients (keep_gradients): of the first repetition, warm-up or not, before any update;
// with them, as parameters of one rank, the frozen ones: those without a gradient buffer in the schedule, of which autograd keeps none;
// a tied table's gradient stands under embed.token.weight, the sum of both uses. No trace. Throws EnvironmentError (Kind::Device) when the
// schedule is not one of a GPT or Llama model. A set options.stop ends it between steps with the losses so far.
ExecutionResult run_plain_model(const Schedule& schedule, const ExecuteOptions& options);

}  // namespace steptwin
