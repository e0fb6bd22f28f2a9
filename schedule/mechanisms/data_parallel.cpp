// Data-parallel gradient all-reduce of what ZeRO does not shard (sum, in place, gradient type) over communicator dp on a lane of its own;
// of embedding and head over dp.ends where they stand on every rank of a pipeline.
//
// Buckets: whole segments of one communicator in the order in which their gradients become final; a bucket is closed when it holds
// bucket_bytes or more (so it may be larger: segments are not split). overlap: issued behind the visit that makes its last gradient final,
// while the last micro-batch's backward goes on. end: all of them behind the last backward, one after another.
// precision.reduce of another type: the bucket is cast on the same lane before and behind its all-reduce.
#include "schedule/mechanisms/all.h"
#include "schedule/mechanisms/gradient_order.h"
#include "schedule/mechanisms/reduce_cast.h"

namespace steptwin {
namespace {

struct Bucket {
  CommId comm;
  std::vector<GradientEnd> members;
  Bytes bytes;
  std::size_t ready = 0;  // visit that completes it
};

class DataParallel : public Mechanism {
 public:
  DataParallel(const Plan& plan, ScheduleBuilder& builder) : reduce_(plan.scenario->gradient_reduce) {
    if (reduces(plan, SegmentKind::Attention) || !plan.ends_everywhere()) comm_ = builder.communicator("dp", {"dp"});
    ends_ = comm_;
    if (plan.ends_everywhere() && reduces(plan, SegmentKind::Embedding))
      ends_ = builder.communicator("dp.ends", plan.replica_axes(SegmentKind::Embedding));
  }

  // Whether the mechanism has work with the segments of a kind.
  static bool reduces(const Plan& plan, SegmentKind kind) { return plan.replicas(kind) > 1 && !plan.sharded(kind); }

  void begin(const Visits& visits, ProgramContext& program) override {
    next_ = 0;
    buckets_.clear();
    const Scenario& scenario = *program.plan.scenario;
    bool open = false;
    for (const GradientEnd& end : gradient_order(program.plan, program.rank, visits)) {
      const SegmentKind kind = program.stage(end.chunk).segments[static_cast<std::size_t>(end.segment)].kind;
      if (!reduces(program.plan, kind)) continue;
      const CommId comm = is_end(kind) ? ends_ : comm_;
      const bool alone = is_end(kind) && ends_ != comm_ && comm_.valid();  // on some ranks nothing may stand between head and embedding
      if (!open || buckets_.back().comm != comm || alone) buckets_.push_back({comm, {}, {}, 0});
      Bucket& bucket = buckets_.back();
      bucket.members.push_back(end);
      bucket.bytes += Bytes(program.stage(end.chunk).segments[static_cast<std::size_t>(end.segment)].trained * size_of(scenario.gradient));
      bucket.ready = end.visit;
      open = bucket.bytes < scenario.bucket_bytes;
    }
    if (!buckets_.empty()) lane_ = program.emit.lane("dp", Engine::Network);
  }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (visits[i].kind != VisitKind::GradientsDone) return;
    while (next_ < buckets_.size()) emit(buckets_[next_++], program);
  }

  void after(const Visits&, std::size_t i, ProgramContext& program) override {
    if (reduce_ != GradientReduce::Overlap) return;
    while (next_ < buckets_.size() && buckets_[next_].ready <= i) emit(buckets_[next_++], program);
  }

 private:
  void emit(const Bucket& bucket, ProgramContext& program) {
    const Scenario& scenario = *program.plan.scenario;
    ReduceCast cast(scenario, lane_, {Phase::Update, program.ids.data_parallel, -1, bucket.members.front().chunk, -1, -1});
    Op op;
    op.body =
        AllReduce{bucket.comm, scenario.reduce, Bytes(bucket.bytes.value / size_of(scenario.gradient) * size_of(scenario.reduce))};
    op.lane = lane_;
    op.label = cast.label();
    std::vector<Access> accesses;
    for (const GradientEnd& member : bucket.members) {
      const std::int64_t elements = program.stage(member.chunk).segments[static_cast<std::size_t>(member.segment)].trained;
      accesses.push_back(update(cast.before(program.home(member.chunk, member.segment).gradient.front(), {}, elements, program.emit)));
    }
    program.emit.op(op, accesses);
    cast.behind(program.emit);
  }

  GradientReduce reduce_;
  CommId comm_, ends_;
  LaneId lane_;
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;  // first bucket that is not issued
};

}  // namespace

bool data_parallel_active(const Plan& plan) {
  return DataParallel::reduces(plan, SegmentKind::Attention) || DataParallel::reduces(plan, SegmentKind::Embedding);
}

std::unique_ptr<Mechanism> make_data_parallel(const Plan& plan, ScheduleBuilder& builder) {
  return std::make_unique<DataParallel>(plan, builder);
}

}  // namespace steptwin
