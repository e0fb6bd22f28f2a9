#include "schedule/mechanisms/reduce_cast.h"

namespace steptwin {

OpId ReduceCast::copy(DType from, DType to, std::int64_t elements, const Access& source, const Access& target, Emitter& emit) const {
  Op op;
  op.body = Copy{from, to, Bytes(elements * size_of(from))};
  op.lane = lane_;
  op.label = label_;
  return emit.op(op, {source, target});
}

BufferId ReduceCast::source(BufferId gradient, Part part, std::int64_t elements, Emitter& emit) {
  if (!casts()) return gradient;
  const BufferId copied = emit.buffer(Category::Gradient, Bytes(elements * size_of(reduced_)));
  copy(kept_, reduced_, elements, read(gradient, part), write(copied), emit);
  return copied;
}

BufferId ReduceCast::target(BufferId gradient, Part part, std::int64_t elements, Emitter& emit) {
  if (!casts()) return gradient;
  back_.push_back({emit.buffer(Category::GradientShard, Bytes(elements * size_of(reduced_))), gradient, part, elements});
  return back_.back().from;
}

BufferId ReduceCast::before(BufferId gradient, Part part, std::int64_t elements, Emitter& emit) {
  const BufferId copied = source(gradient, part, elements, emit);
  if (casts()) back_.push_back({copied, gradient, part, elements});
  return copied;
}

OpId ReduceCast::behind(Emitter& emit) {
  OpId last;
  for (const Back& back : back_) last = copy(reduced_, kept_, back.elements, read(back.from), write(back.to, back.part), emit);
  back_.clear();
  return last;
}

}  // namespace steptwin
