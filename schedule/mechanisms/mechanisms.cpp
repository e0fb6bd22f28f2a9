#include "schedule/mechanisms/all.h"

namespace steptwin {

// Order matters at one visit: the last hidden state of a pipeline of batches is shared before those in between; a unit is entered before
// what uses it; gradients are reduced over dp before a tied table is summed over stages, both before the overflow check, which can hold
// back everything behind it: clipping, unscaling, the optimizer.
const std::vector<MechanismRow>& mechanism_table() {
  static const std::vector<MechanismRow> table = {
      {"run_ahead", run_ahead_active, make_run_ahead},
      {"p2p", p2p_active, make_p2p},
      {"batch_pipeline", batch_pipeline_active, make_batch_pipeline},
      {"hidden_states", hidden_states_active, make_hidden_states},
      {"zero", zero_active, make_zero},
      {"deepspeed_zero", deepspeed_zero_active, make_deepspeed_zero},
      {"data_parallel", data_parallel_active, make_data_parallel},
      {"tied_embedding", tied_embedding_active, make_tied_embedding},
      {"overflow", overflow_active, make_overflow},
      {"gradient_scale", gradient_scale_active, make_gradient_scale},
      {"optimizer", optimizer_active, make_optimizer},
  };
  return table;
}

}  // namespace steptwin
