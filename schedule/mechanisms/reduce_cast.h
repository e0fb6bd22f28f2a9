// Gradients that are reduced in another type than they are kept in (precision.reduce): a cast copy of each on the reduction's lane, the
// reduction on the copies, a cast back. Of equal types it makes nothing.
#pragma once

#include <vector>

#include "schedule/mechanisms/emitter.h"
#include "schedule/scenario.h"

namespace steptwin {

class ReduceCast {
 public:
  ReduceCast(const Scenario& scenario, LaneId lane, const Label& label)
      : kept_(scenario.gradient), reduced_(scenario.reduce), lane_(lane), label_(label) {}

  const Label& label() const { return label_; }
  bool casts() const { return kept_ != reduced_; }
  // What an in-place reduction takes for `elements` of the gradient's part; cast back by behind().
  BufferId before(BufferId gradient, Part part, std::int64_t elements, Emitter& emit);
  // What a reduction reads for them, and where it may leave what behind() casts into the gradient's part.
  BufferId source(BufferId gradient, Part part, std::int64_t elements, Emitter& emit);
  BufferId target(BufferId gradient, Part part, std::int64_t elements, Emitter& emit);
  // The last op it made; none when the types are equal.
  OpId behind(Emitter& emit);

 private:
  struct Back {
    BufferId from, to;
    Part part;
    std::int64_t elements = 0;
  };
  OpId copy(DType from, DType to, std::int64_t elements, const Access& read, const Access& written, Emitter& emit) const;

  DType kept_, reduced_;
  LaneId lane_;
  Label label_;
  std::vector<Back> back_;
};

}  // namespace steptwin
