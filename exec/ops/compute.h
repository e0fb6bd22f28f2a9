// The LibTorch layers: runs one compute op on operands in host memory. torch headers stay in the .cpp files.
// The operand order is the table in schedule/mechanisms/segment_ops.h; shapes and dtypes come from the layouts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "exec/ops/dropout.h"
#include "schedule/ir/schedule.h"

namespace steptwin {

// One access of an op bound to memory: `data` is the first byte of the accessed part, `bytes` its size.
struct BoundAccess {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  const Layout* layout = nullptr;  // of the whole buffer; null: opaque bytes. With Part::Tensor only that tensor is bound
  Part part;
  AccessMode mode = AccessMode::Read;
  Category category = Category::Other;
  bool shard = false;  // the buffer is one shard of the layout (Buffer::shard)
  Space space = Space::Device;
};

// What an op needs to know of the whole step.
struct StepContext {
  double loss_scale =
      1;  // multiplies the loss gradient: 1 / (micro-batches x data-parallel ranks), so that gradients sum to the mean loss's
  std::int64_t step = 1;     // for Adam's bias correction, from 1
  std::int32_t device = -1;  // where the operands lie: a CUDA device, or -1: host memory
  std::uint64_t seed = 1;    // of the masks that dropout draws
  // Masks are drawn by sample. The rank's pipeline has its samples in one order: micro-batch by micro-batch of its layers, which is batch
  // by batch of its embeddings and in it rank by rank, where several of its ranks (batch_ranks) have an embedding and a batch each.
  SampleOrder samples = {};
  std::int64_t first_place = 0;                  // of the step's samples, in that order
  std::int64_t batch_ranks = 1, batch_rank = 0;
};

// Throws EnvironmentError (Kind::Device) when the segment, phase or operands are unknown to it; the caller names the op.
void run_compute(const Schedule& schedule, const Program& program, OpId op, std::span<const BoundAccess> operands, const StepContext& step);

// Fills a parameter with its initial values: normal(0, 0.02) weights, zero biases, unit norm gains; a function of (name, seed, shape)
// alone, so every rank and the plain model draw the same. `name` says whose values are drawn, dtype and shape come from `tensor`: pass
// drawn_as(schedule, tensor.name), so that a tied head's copy gets the embedding's values. A master copy draws under the same name: its
// parameter is its rounding.
void initialise_parameter(const std::string& name, const TensorSpec& tensor, std::byte* data, std::uint64_t seed);

// The head holds a copy of the embedding's table, kept equal by a communicator of its own (schedule/mechanisms/tied_embedding.cpp).
inline bool has_tied_copy(const Schedule& schedule) {
  return std::any_of(schedule.communicators.begin(), schedule.communicators.end(),
                     [](const Communicator& c) { return c.name == "pp.tied"; });
}
// Under which name a parameter's values are drawn.
inline std::string drawn_as(const Schedule& schedule, const std::string& name) {
  return name == "head.weight" && has_tied_copy(schedule) ? "embed.token.weight" : name;
}

// Adds `from` into `into` element by element in fp32 (rounded once to dtype): the fixed-order reduction of exec/comm/local.
void add_into(std::byte* into, const std::byte* from, std::int64_t elements, DType dtype);
// Converts elements between types (Copy ops with a cast, master weights).
void convert(std::byte* to, DType to_type, const std::byte* from, DType from_type, std::int64_t elements);

// Versions and thread settings of LibTorch and its BLAS, JSON.
std::string library_versions();
// One intra-op thread. Bitwise: deterministic algorithms. Call once before the first op.
enum class Determinism : std::uint8_t { None, Bitwise };
void set_up_library(Determinism determinism);

}  // namespace steptwin
