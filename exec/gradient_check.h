// Are the gradients and losses of an execution those of the plain model?
//   fp32:  per tensor |g - g0| <= 1e-5 * max(|g0|, 1e-3 * norm of all gradients), Euclidean norms (element-wise is meaningless: some
//          gradients, a key bias for one, are zero in theory); losses within 1e-6, relative.
//          Where hidden states are inspected, the figures of each within 1e-5 of their norm.
//   16-bit: per tensor the distance to the fp32 plain model is at most twice that of the plain model in the same type (plus the fp32
//          bound); losses and hidden states within 1e-2 of the fp32 plain model's, relative.
// Frozen parameters have the plain model's bits, as they were drawn, after the last step.
// A tied head's copy is compared with the embedding's gradient. A NaN, a tensor that one side lacks, and runs without gradients never pass.
#pragma once

#include <string>

#include "exec/backend.h"

namespace steptwin {

struct GradientCheck {
  bool holds = false;
  std::string worst;            // the loss or tensor that uses most of its allowance
  double worst_use = 0;         // distance / allowance; > 1 fails
  std::size_t tensors = 0;
  double loss_difference = 0;   // largest relative one
  std::string problem;          // one sentence; empty when it holds
};

// Another device than the plain model's multiplies in another order: 1e-4 takes the place of 1e-5, and 1e-5 that of 1e-6 (issue 4).
enum class PlainDevice : std::uint8_t { Same, Other };
GradientCheck check_against_plain(const Schedule& schedule, const ExecutionResult& run, const ExecutionResult& plain,
                                  PlainDevice device = PlainDevice::Same);
// `plain` in the run's own type, `reference` in fp32.
GradientCheck check_against_plain_16bit(const Schedule& schedule, const ExecutionResult& run, const ExecutionResult& plain,
                                        const ExecutionResult& reference);

}  // namespace steptwin
