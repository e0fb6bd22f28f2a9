// How a step's samples are cut: which ranks have batches of their own, and what a layer sees of them at a time.
//   form stages   dp ranks; a layer sees one micro-batch.
//   form bmtrain  dp * pp ranks; a layer sees a piece of the pipeline's batches, p * B / M samples (specs/bmtrain.md 9.2).
#pragma once

#include "schedule/scenario.h"

namespace steptwin {

// 1 when the mesh lacks the axis.
inline std::int64_t axis_size(const Mesh& mesh, std::string_view axis) {
  const auto index = mesh.axis(axis);
  return index ? static_cast<std::int64_t>(mesh.axes[*index].size) : 1;
}

inline bool batch_on_every_rank(const Scenario& s) { return s.pipeline.form == PipelineForm::Bmtrain; }
inline std::int64_t batch_ranks(const Scenario& s) {
  return axis_size(s.mesh, "dp") * (batch_on_every_rank(s) ? axis_size(s.mesh, "pp") : 1);
}

// Micro-batches that go through the layers together: all of a step, or the pieces of one batch.
inline std::int64_t pipelined_together(const Scenario& s) { return batch_on_every_rank(s) ? s.pipeline.micro_batches : s.micro_batches; }
// Pieces of one batch: they share one gather and one reduction of a layer.
inline std::int64_t pieces_of_batch(const Scenario& s) { return batch_on_every_rank(s) ? s.pipeline.micro_batches : 1; }
inline std::int64_t layer_micro_batches(const Scenario& s) { return s.micro_batches * pieces_of_batch(s); }
inline BatchShape layer_batch(const Scenario& s) {
  if (!batch_on_every_rank(s)) return s.batch;
  return {s.batch.micro_batch * axis_size(s.mesh, "pp") / s.pipeline.micro_batches, s.batch.sequence};
}

}  // namespace steptwin
