// The operands of one compute op, taken in the order of the op's signature (schedule/mechanisms/segment_ops.h), and the tensors inside
// them. Every complaint is an EnvironmentError (Kind::Device); the caller names the op. No torch.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/ops/compute.h"
#include "exec/ops/dropout.h"

namespace steptwin {

// Where a tensor lies. `shape` points into the schedule's layout.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::Fp32;
  std::span<const std::int64_t> shape;
};

class Operands {
 public:
  Operands(const Schedule& schedule, OpId op, std::span<const BoundAccess> accesses, const StepContext& step)
      : schedule_(schedule), op_(op), accesses_(accesses), step_(step) {}

  // The next operand, which must have this mode; `what` names it in the complaint. Accesses that only hold are passed over.
  // Parameters, gradients and the tensors of a forward (layouts NAME.saved and NAME.passing) may lie in several buffers, one operand each:
  // read(), write() and gradient() return the first and take them all; tensor() and has() look into all.
  const BoundAccess& read(const char* what) { return take(what, AccessMode::Read); }
  const BoundAccess& write(const char* what) { return take(what, AccessMode::Write); }
  const BoundAccess& update(const char* what) { return take(what, AccessMode::Update); }
  const BoundAccess& gradient(const char* what);  // a write (the step's first contribution) or an update
  bool next_is(AccessMode mode);
  bool next_is_gradient();
  bool next_is_parameter();  // a read
  bool next_is_of_forward();
  bool next_is_kept();  // K, a layout NAME.kept
  bool next_is_laid_out_as(std::string_view layout);
  // Behind the signature only workspace may follow: temporaries are LibTorch's own.
  void finish();

  const StepContext& step() const { return step_; }
  const ComputePart& part() const;  // the op's only one
  double constant(std::string_view name) const;  // of the schedule; fails when it states none
  [[noreturn]] void fail(const std::string& problem, const std::string& help = {}) const;

  // A tensor of the operand's layout by the end of its name (whole words between dots: "norm.weight"), bounds checked; `has` asks whether
  // there is one. In a layout of several segments the one of this op's segment ("mlp.norm.weight").
  TensorView tensor(const BoundAccess& operand, std::string_view suffix) const;
  bool has(const BoundAccess& operand, std::string_view suffix) const;
  // The only tensor of the operand: its Part::Tensor, or its layout holds just one.
  TensorView only_tensor(const BoundAccess& operand) const;
  // The random state that the forward of this op begins with, which holds so many samples, and one that is kept in host memory.
  MaskState masks_of_forward(std::int64_t samples) const;
  MaskState masks_in(const BoundAccess& state) const;
  void save_masks(const MaskState& masks, const BoundAccess& state) const;
  // Token or target ids of a micro-batch: a piece of the input buffer, flat.
  std::span<const std::int64_t> ids(const BoundAccess& operand) const;

 private:
  const BoundAccess* next();
  void require_state(const BoundAccess& state) const;
  const BoundAccess& take(const char* what, AccessMode mode);
  struct Found {
    const BoundAccess* operand = nullptr;
    const TensorSpec* tensor = nullptr;
  };
  Found find(const BoundAccess& operand, std::string_view suffix) const;
  std::span<const BoundAccess> run_of(const BoundAccess& operand) const;  // it and the ones behind it that belong to it
  std::string_view segment() const;
  TensorView bind(const BoundAccess& operand, const TensorSpec& tensor, std::int64_t offset) const;

  const Schedule& schedule_;
  OpId op_;
  std::span<const BoundAccess> accesses_;
  const StepContext& step_;
  std::size_t next_ = 0;
};

}  // namespace steptwin
