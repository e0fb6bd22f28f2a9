// A tied embedding over stages: the last stage's head uses a copy of the first stage's token table. Both gradients are summed in
// ascending stage order before the optimizer (an all-reduce of two members in the gradient type, in place), so both optimizers make
// the same step and the copies stay equal. Issued when all gradients are done, behind the data-parallel reduction of both.
// Under ZeRO each rank sums its share of the table. A frozen table has no gradient and nothing is summed; the communicator is there, as by
// it executors know the head's table for a copy (exec/ops/compute.h).
#include <algorithm>

#include "schedule/mechanisms/all.h"

namespace steptwin {
namespace {

class TiedEmbedding : public Mechanism {
 public:
  TiedEmbedding(const Plan& plan, ScheduleBuilder& builder) {
    const auto first = static_cast<std::uint32_t>(plan.stages.front().rank), last = static_cast<std::uint32_t>(plan.stages.back().rank);
    comm_ = builder.communicator("pp.tied", {"pp"}, {{std::min(first, last), std::max(first, last)}});
  }

  void begin(const Visits&, ProgramContext& program) override {
    const StagePlan& first = program.plan.stages.front();
    const StagePlan& last = program.plan.stages.back();
    table_ = {};
    if (first.rank == program.rank) table_ = find(first, SegmentKind::Embedding, "embed.token.weight", program);
    if (last.rank == program.rank) table_ = find(last, SegmentKind::Head, "head.weight", program);
    if (table_.gradient.buffer.valid()) lane_ = program.emit.lane("tied", Engine::Network);
  }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    if (visits[i].kind != VisitKind::GradientsDone || !table_.gradient.buffer.valid()) return;
    Op op;
    const DType type = program.plan.scenario->gradient;
    op.body = AllReduce{comm_, type, Bytes(table_.gradient.elements * size_of(type))};
    op.lane = lane_;
    op.label = {Phase::Update, program.ids.tied, -1, table_.chunk, -1, -1};
    program.emit.op(op, {update(table_.gradient.buffer, table_.gradient.part)});
  }

 private:
  struct Table {
    OwnGradient gradient;
    std::int32_t chunk = 0;
  };

  static Table find(const StagePlan& stage, SegmentKind kind, const char* name, ProgramContext& program) {
    const auto it = std::find_if(stage.segments.begin(), stage.segments.end(), [&](const SegmentPlan& s) { return s.kind == kind; });
    const auto index = static_cast<std::int32_t>(it - stage.segments.begin());
    return {gradient_of(program.plan, program.home(stage.chunk, index), name), stage.chunk};
  }

  CommId comm_;
  LaneId lane_;
  Table table_;  // of the current program; no gradient = it holds none
};

}  // namespace

bool tied_embedding_active(const Plan& plan) { return plan.tying == Tying::Remote; }

std::unique_ptr<Mechanism> make_tied_embedding(const Plan& plan, ScheduleBuilder& builder) {
  return std::make_unique<TiedEmbedding>(plan, builder);
}

}  // namespace steptwin
