// The buffers of one program: the shared table that says where every parameter, gradient and tensor of a micro-batch lives now.
// Built before the walk (resident buffers) and filled during it; mechanisms meet here and nowhere else.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "schedule/mechanisms/emitter.h"
#include "schedule/mechanisms/plan.h"

namespace steptwin {

// What is the same in every program: layouts, works and names, interned once per schedule.
struct SharedIds {
  std::array<LayoutId, 4> saved;              // [SegmentKind]; none when nothing is saved
  std::array<std::array<WorkId, 7>, 4> work;  // [SegmentKind][Phase]: F, R, B, I, W
  std::array<NameId, 4> segment;              // "embed", "attn", "mlp", "head"
  NameId adam, data_parallel, tied, fill, accumulate, down, up;
  std::array<LayoutId, 4> hidden;             // [SegmentKind]: the tensor at its boundaries
  LayoutId ids, loss, loss_scale;
  LayoutId random;                            // of a saved random state; none: nothing is drawn again
};
SharedIds make_shared_ids(const Plan& plan, ScheduleBuilder& builder);

// Parameters as this rank keeps and steps them: a segment's, or under ZeRO this rank's share of a flat group. Invalid ids: the optimizer
// keeps no such state.
struct StoredGroup {
  BufferId param, gradient, master, first_moment, second_moment;
  BufferId host_param, host_gradient;  // offloaded: pinned copies of the parts below; the optimizer's states are in pageable memory
  Part param_part, gradient_part;      // what the optimizer steps of them; the states are that long
  std::int64_t elements = 0;           // of the step
};

// A resident buffer of the training state. With run.lazy_state everything but the device's parameters is lazy.
struct StateBuffer {
  std::string name;
  Category category = Category::Param;
  Bytes bytes;
  LayoutId layout;
  Space space = Space::Device;
};
BufferId state_buffer(const Plan& plan, const StateBuffer& state, Emitter& emit);

// Makes the optimizer's buffers of a group, on the device or, offloaded, on the host. `make` makes a resident buffer of the group's
// elements: (what, category, type, space).
void make_optimizer_state(const Plan& plan, StoredGroup& group,
                          const std::function<BufferId(const char*, Category, DType, Space)>& make);

// Where the parameters of a segment and their gradients are now.
struct SegmentHome {
  std::vector<BufferId> param, gradient;  // operands P and G of its ops: one buffer, under ZeRO one per group; empty: no parameters
  std::vector<BufferId> held;             // kept while its ops run, read by none of them
  bool zeroed = false;                    // gradients start as zeros: every contribution adds
  bool gradient_written = false;          // else the first contribution of a step writes, later ones update
  std::vector<StoredGroup> groups;        // what its Update visit steps
};

// A tensor of a micro-batch: a buffer, or a part of one.
struct TensorPlace {
  BufferId buffer;
  Part part;
  TensorPlace() = default;
  TensorPlace(BufferId whole, Part of = {}) : buffer(whole), part(of) {}
};

// Buffers of one chunk. Boundary j lies before segment j; boundary n (segments) is the stage's output. Invalid = not made (yet).
class ChunkTensors {
 public:
  ChunkTensors(std::size_t segments, std::size_t micro_batches)
      : segments_(segments),
        values_((segments + 1) * micro_batches),
        gradients_((segments + 1) * micro_batches),
        saved_(segments * micro_batches),
        kept_(segments * micro_batches),
        random_(segments * micro_batches),
        slots_(segments * micro_batches) {}
  TensorPlace& value(std::int32_t micro_batch, std::size_t boundary) {
    return values_[static_cast<std::size_t>(micro_batch) * (segments_ + 1) + boundary];
  }
  TensorPlace& gradient(std::int32_t micro_batch, std::size_t boundary) {
    return gradients_[static_cast<std::size_t>(micro_batch) * (segments_ + 1) + boundary];
  }
  BufferId& saved(std::int32_t micro_batch, std::size_t segment) {
    return saved_[static_cast<std::size_t>(micro_batch) * segments_ + segment];
  }
  BufferId& kept(std::int32_t micro_batch, std::size_t segment) {
    return kept_[static_cast<std::size_t>(micro_batch) * segments_ + segment];
  }
  BufferId& random(std::int32_t micro_batch, std::size_t segment) {  // state of the masks that a forward drew
    return random_[static_cast<std::size_t>(micro_batch) * segments_ + segment];
  }
  BufferId& slot(std::int32_t micro_batch, std::int32_t number) {  // checkpoint slots of the sqrt list
    return slots_[static_cast<std::size_t>(micro_batch) * segments_ + static_cast<std::size_t>(number)];
  }
  std::size_t segments() const { return segments_; }

 private:
  std::size_t segments_;
  std::vector<TensorPlace> values_, gradients_;
  std::vector<BufferId> saved_, kept_, random_, slots_;
};

struct Tensors {
  std::vector<std::vector<SegmentHome>> homes;  // [chunk][segment]
  std::vector<ChunkTensors> chunks;
  BufferId tokens, targets;             // resident: the loader fills them before the step; piece i of m = micro-batch i
  BufferId update_guard;                // of the optimizer's ops; none: they always do their work
  BufferId loss_scale;                  // resident, fp32 {scale, good steps, skipped steps}; none: the loss is not scaled
  bool table_gradient_written = false;  // Tying::Local: the table's part of the embedding's gradient buffer
};

// The one buffer of a segment that holds one of its tensors (the token table, say), and its part: of the embedding's P or G.
inline std::pair<BufferId, Part> table_of(const std::vector<BufferId>& buffers, std::uint32_t tensor) {
  if (buffers.size() == 1) return {buffers.front(), {Part::Kind::Tensor, tensor, 0}};
  return {buffers[tensor], {Part::Kind::Tensor, 0, 0}};
}

// Makes the resident buffers of the pipeline rank: parameters (compute type), gradients (gradient type), optimizer states (fp32:
// master unless the compute type is the master's, first and second moment). What ZeRO shards has no buffers yet (zero_storage.h).
Tensors make_tensors(const Plan& plan, std::int32_t rank, const SharedIds& ids, Emitter& emit);

}  // namespace steptwin
