// A pipeline whose ranks all have a batch (form bmtrain; specs/bmtrain.md 9.2-9.4). The hidden state of a pipeline's p batches, H bytes, is
// laid out in two ways: as the p batches, one a rank, and as the M micro-batches that go through the layers. Around the layers, all of it
// on the compute lane, over the communicator pp.batch:
//
//   behind the embedding      all-gather of the ranks' hidden states; the first stage's micro-batches are parts of it
//   before the head           last stage: M copies put its outputs together; broadcast from it; a copy of the rank's own batch
//   behind the head's         all-gather of the gradients; the last stage's output gradients are parts of it
//     backward
//   before the embedding's    first stage: M copies put its input gradients together; broadcast from it; a copy of the own batch
//     backward
//
// Of the backward only what somebody below needs: behind the head's when a layer or the embedding is trained, before the embedding's when
// it is. Every rank holds the gathered and the broadcast tensors while they are on the way, whatever it needs of them. They are not kept
// longer than their last use (BMTrain's autograd graph keeps the outputs until the backward).
#include <fmt/format.h>

#include <algorithm>

#include "schedule/mechanisms/all.h"

namespace steptwin {
namespace {

class BatchPipeline : public Mechanism {
 public:
  BatchPipeline(const Plan& plan, ScheduleBuilder& builder)
      : comm_(batch_communicator(builder)),
        name_(builder.name("batch")),
        stages_(static_cast<std::uint32_t>(plan.ranks())),
        type_(plan.scenario->compute),
        piece_(plan.hidden_bytes(SegmentKind::Attention)),
        whole_(piece_ * plan.pieces) {
    const BatchShape batch = layer_batch(*plan.scenario);
    Layout layout{"hidden.pipeline", {}};
    for (std::int64_t m = 0; m < plan.pieces; ++m)
      layout.tensors.push_back(
          {fmt::format("mb{}", m), type_, {batch.micro_batch, batch.sequence, plan.scenario->model.hidden}, piece_ * m});
    layout_ = builder.layout(std::move(layout));
  }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    const Visit& visit = visits[i];
    if (is(visit, SegmentKind::Head, Phase::Forward, program)) {
      const StagePlan& stage = program.stage(visit.chunk);
      share(visit, program.plan.last_stage(stage), stages_ - 1, &ChunkTensors::value, stage.out, Category::Activation, program);
    }
    if (is(visit, SegmentKind::Embedding, Phase::Backward, program)) {
      const StagePlan& stage = program.stage(visit.chunk);
      share(visit, stage.stage == 0, 0, &ChunkTensors::gradient, stage.in, Category::Workspace, program);
    }
  }

  void after(const Visits& visits, std::size_t i, ProgramContext& program) override {
    const Visit& visit = visits[i];
    if (is(visit, SegmentKind::Embedding, Phase::Forward, program)) {
      const StagePlan& stage = program.stage(visit.chunk);
      gather(visit, stage.stage == 0, &ChunkTensors::value, stage.in, Category::Activation, program);
    }
    if (is(visit, SegmentKind::Head, Phase::Backward, program) && program.segment(visit).wanted.input) {
      const StagePlan& stage = program.stage(visit.chunk);
      gather(visit, program.plan.last_stage(stage), &ChunkTensors::gradient, stage.out, Category::Workspace, program);
    }
  }

 private:
  using Boundary = TensorPlace& (ChunkTensors::*)(std::int32_t micro_batch, std::size_t boundary);  // values or gradients

  static bool is(const Visit& visit, SegmentKind kind, Phase phase, const ProgramContext& program) {
    return visit.kind == VisitKind::Segment && visit.phase == phase && program.segment(visit).kind == kind;
  }

  Op op_of(OpBody body, const Visit& visit, const ProgramContext& program) const {
    Op op;
    op.body = std::move(body);
    op.lane = program.compute;
    op.label = {visit.phase, name_, -1, visit.chunk, program.plan.batch_of(visit.micro_batch), -1};
    return op;
  }

  Part micro_batch(std::int32_t m) const { return {Part::Kind::Tensor, static_cast<std::uint32_t>(m), 0}; }

  // The rank's own batch at a boundary becomes all of them; a rank that runs them through its layers next gets them as micro-batches.
  void gather(const Visit& visit, bool uses, Boundary boundary, std::size_t at, Category category, ProgramContext& program) const {
    ChunkTensors& chunk = program.chunk(visit.chunk);
    const BufferId own = (chunk.*boundary)(visit.micro_batch, at).buffer;
    const BufferId all = program.emit.buffer(category, whole_, layout_);
    program.emit.op(op_of(AllGather{comm_, type_, whole_}, visit, program), {read(own), write(all)});
    for (std::int32_t m = 0; uses && m < program.plan.pieces; ++m) (chunk.*boundary)(visit.micro_batch + m, at) = {all, micro_batch(m)};
  }

  // What one stage has at a boundary as micro-batches goes to all; every rank takes its own batch of it.
  void share(const Visit& visit, bool has, std::uint32_t root, Boundary boundary, std::size_t at, Category category,
             ProgramContext& program) const {
    ChunkTensors& chunk = program.chunk(visit.chunk);
    const BufferId all = program.emit.buffer(category, whole_, layout_);
    for (std::int32_t m = 0; has && m < program.plan.pieces; ++m) {
      const TensorPlace from = (chunk.*boundary)(visit.micro_batch + m, at);
      program.emit.op(op_of(Copy{type_, type_, piece_}, visit, program), {read(from.buffer, from.part), write(all, micro_batch(m))});
    }
    program.emit.op(op_of(Broadcast{comm_, type_, whole_, Peer{static_cast<std::int32_t>(root), false}}, visit, program),
                    {has ? read(all) : write(all)});
    const Bytes own_bytes = program.plan.hidden_bytes(SegmentKind::Head);
    const BufferId own = program.emit.buffer(category, own_bytes, program.ids.hidden[static_cast<std::size_t>(SegmentKind::Head)]);
    const Part batch{Part::Kind::Piece, static_cast<std::uint32_t>(program.rank), stages_};
    program.emit.op(op_of(Copy{type_, type_, own_bytes}, visit, program), {read(all, batch), write(own)});
    (chunk.*boundary)(visit.micro_batch, at) = own;
  }

  CommId comm_;
  NameId name_;
  std::uint32_t stages_;
  DType type_;
  Bytes piece_, whole_;  // of a micro-batch; of all batches of a pipeline
  LayoutId layout_;      // of the whole, as micro-batches
};

}  // namespace

CommId batch_communicator(ScheduleBuilder& builder) {
  constexpr const char* kName = "pp.batch";
  const std::vector<Communicator>& known = builder.so_far().communicators;
  const auto found = std::find_if(known.begin(), known.end(), [&](const Communicator& c) { return c.name == kName; });
  if (found == known.end()) return builder.communicator(kName, {"pp"});
  return CommId(static_cast<std::uint32_t>(found - known.begin()));
}

bool batch_pipeline_active(const Plan& plan) { return plan.ends_everywhere(); }

std::unique_ptr<Mechanism> make_batch_pipeline(const Plan& plan, ScheduleBuilder& builder) {
  return std::make_unique<BatchPipeline>(plan, builder);
}

}  // namespace steptwin
