#include "schedule/mechanisms/gradient_buckets.h"

#include "schedule/mechanisms/reduce_cast.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {

void GradientBuckets::add(const Gradient& gradient, ProgramContext& program) {
  if (waiting_elements_ + gradient.elements > size_) reduce(program);
  waiting_.push_back(gradient);
  waiting_elements_ += gradient.elements;
}

void GradientBuckets::finish_backward(ProgramContext& program) {
  reduce(program);
  if (const OpId last = program.emit.last_on(lane_); last.valid()) program.emit.host_wait(last);
}

// precision.reduce of another type: casts of all gradients before, and of their shards behind the call, on the same lane.
void GradientBuckets::reduce(ProgramContext& program) {
  if (waiting_.empty()) return;
  if (const OpId oldest = calls_.oldest(); oldest.valid()) program.emit.host_wait(oldest);
  const DType type = program.plan.scenario->reduce;
  ReduceCast cast(*program.plan.scenario, lane_, waiting_.back().label);
  std::vector<BufferId> sources;
  for (const Gradient& gradient : waiting_) sources.push_back(cast.source(gradient.whole, {}, gradient.group->cut.gathered, program.emit));
  const GroupId call = waiting_.size() > 1 ? program.emit.new_group() : GroupId();
  std::vector<Sum> sums;
  OpId last;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const Sharding& cut = waiting_[i].group->cut;
    sums.push_back(receive(waiting_[i], program));
    Op op;
    op.body = ReduceScatter{comm_, type, Bytes(cut.gathered * size_of(type))};
    op.lane = lane_;
    op.group = call;
    op.label = waiting_[i].label;
    last = program.emit.op(op, {read(sources[i]), write(cast.target(sums.back().received, {}, cut.partition, program.emit))});
  }
  if (const OpId cast_back = cast.behind(program.emit); cast_back.valid()) last = cast_back;
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (sums[i].received != sums[i].group->stored.gradient) last = add_to_shard(sums[i], waiting_[i].label, program);
  calls_.record(last);
  waiting_.clear();
  waiting_elements_ = 0;
}

GradientBuckets::Sum GradientBuckets::receive(const Gradient& gradient, ProgramContext& program) {
  const ZeroGroup& group = *gradient.group;
  if (summed_.insert(group.stored.gradient.value).second) return {&group, group.stored.gradient};
  const Bytes bytes(group.cut.partition * size_of(program.plan.scenario->gradient));
  const BufferId received = program.emit.buffer(Category::GradientShard, bytes, group.gradient_layout);
  program.emit.builder().shard_buffer(received, comm_);
  return {&group, received};
}

OpId GradientBuckets::add_to_shard(const Sum& sum, const Label& label, ProgramContext& program) const {
  const DType type = program.plan.scenario->gradient;
  Label own = label;
  own.phase = Phase::None;
  own.segment = program.ids.accumulate;
  return program.emit.compute(lane_, own, program.emit.builder().work(accumulate_work(sum.group->cut.partition, type, type)),
                              {read(sum.received), update(sum.group->stored.gradient)});
}

}  // namespace steptwin
