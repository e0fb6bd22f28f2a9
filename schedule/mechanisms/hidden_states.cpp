// Hidden states returned and inspected, as BMTrain's TransformerBlockList(return_hidden_states) and its inspector do (specs/bmtrain.md 5,
// 6): the input of every layer is copied into a stack of the stage's layers, which the caller of the forward gets: an extra buffer of that
// many hidden states per micro-batch. Behind the stage's last layer it is inspected: mean, deviation, least and largest value of each. All
// on the compute lane. The stack dies there; its gradient is zero, so nothing is added to what the layers hand down.
//
// Form bmtrain (specs/bmtrain.md 9.3): a stage stacks the inputs of its layers for all micro-batches of a batch. Behind the broadcast of
// the last hidden state every stage in turn broadcasts its stack over pp.batch; the others receive into fresh buffers, and every rank
// copies its own samples of every layer out of each into a stack of its batch, of all layers, which it inspects. No loss reads them, so the
// gathers of their gradients that BMTrain makes in the backward are left out.
#include <fmt/format.h>

#include "schedule/mechanisms/all.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {
namespace {

constexpr std::int64_t kFigures = 4;

struct StageLayers {
  std::int64_t first = 0, count = 0;
};

StageLayers layers_of(const StagePlan& stage) {
  StageLayers layers;
  for (const SegmentPlan& segment : stage.segments) {
    if (segment.kind != SegmentKind::Attention) continue;
    if (layers.count++ == 0) layers.first = segment.layer;
  }
  return layers;
}

Part piece(std::int64_t index, std::int64_t of) {
  return {Part::Kind::Piece, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(of)};
}

class HiddenStates : public Mechanism {
 public:
  HiddenStates(const Plan& plan, ScheduleBuilder& builder)
      : shares_(plan.ends_everywhere()),
        type_(plan.scenario->compute),
        state_(plan.hidden_bytes(SegmentKind::Attention)),
        hidden_(builder.name("hidden")),
        inspect_(builder.name("inspect")) {
    if (shares_) comm_ = batch_communicator(builder);
  }

  void begin(const Visits&, ProgramContext& program) override {
    chunks_.clear();
    for (std::size_t chunk = 0; chunk < program.tensors.chunks.size(); ++chunk)
      chunks_.push_back(make_chunk(program.stage(static_cast<std::int32_t>(chunk)), program));
  }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    const Visit& visit = visits[i];
    if (!is_forward(visit)) return;
    if (program.segment(visit).kind == SegmentKind::Attention) keep_input(visit, program);
    if (program.segment(visit).kind == SegmentKind::Head && shares_) share(visit, program);
  }

  void after(const Visits& visits, std::size_t i, ProgramContext& program) override {
    const Visit& visit = visits[i];
    if (shares_ || !is_forward(visit) || program.segment(visit).kind != SegmentKind::Mlp) return;
    const Chunk& chunk = chunks_[static_cast<std::size_t>(visit.chunk)];
    if (program.segment(visit).layer + 1 != chunk.layers.first + chunk.layers.count) return;
    inspect(stack(visit, program), chunk.layers.count, visit, program);
  }

 private:
  struct Chunk {
    StageLayers layers;            // of the stage
    BufferId figures;              // resident, fp32 [batches, 4] of each layer that the rank inspects
    std::vector<BufferId> stacks;  // [batch]: [layers, micro-batches of it, a hidden state]
  };

  static bool is_forward(const Visit& visit) { return visit.kind == VisitKind::Segment && visit.phase == Phase::Forward; }

  BufferId& stack(const Visit& visit, const ProgramContext& program) {
    return chunks_[static_cast<std::size_t>(visit.chunk)].stacks[static_cast<std::size_t>(program.plan.batch_of(visit.micro_batch))];
  }

  // Of several layers' hidden states, of so many samples each.
  BufferId make_stack(std::int64_t layers, std::int64_t samples, ProgramContext& program) const {
    const Scenario& scenario = *program.plan.scenario;
    Layout layout{"hidden.stack", {{"hidden", type_, {layers, samples, scenario.batch.sequence, scenario.model.hidden}, {}}}};
    const Bytes bytes = layout.tensors.front().bytes();
    return program.emit.buffer(Category::Activation, bytes, program.emit.builder().layout(std::move(layout)));
  }

  // Micro-batches of a batch lie side by side in a layer's part of the stack.
  void keep_input(const Visit& visit, ProgramContext& program) {
    const Chunk& chunk = chunks_[static_cast<std::size_t>(visit.chunk)];
    const std::int64_t pieces = program.plan.pieces, layer = program.segment(visit).layer;
    BufferId& stack = this->stack(visit, program);
    if (!stack.valid()) stack = make_stack(chunk.layers.count, layer_batch(*program.plan.scenario).micro_batch * pieces, program);
    const TensorPlace& input = program.chunk(visit.chunk).value(visit.micro_batch, static_cast<std::size_t>(visit.segment));
    const Part part = piece((layer - chunk.layers.first) * pieces + visit.micro_batch % pieces, chunk.layers.count * pieces);
    Op op;
    op.body = Copy{type_, type_, state_};
    op.lane = program.compute;
    op.label = {Phase::Forward, hidden_, static_cast<std::int32_t>(layer), visit.chunk, visit.micro_batch, -1};
    program.emit.op(op, {read(input.buffer, input.part), write(stack, part)});
  }

  // Form bmtrain, before the head: every stage's stack goes to all ranks of the pipeline.
  void share(const Visit& visit, ProgramContext& program) {
    const Plan& plan = program.plan;
    const std::int64_t samples = plan.scenario->batch.micro_batch, layers = plan.scenario->model.layers;
    const BufferId own = make_stack(layers, samples, program);
    Op op;
    op.lane = program.compute;
    op.label = {Phase::Forward, hidden_, -1, visit.chunk, plan.batch_of(visit.micro_batch), -1};
    for (const StagePlan& stage : plan.stages) {
      const StageLayers held = layers_of(stage);
      if (held.count == 0) continue;
      const bool root = stage.rank == program.rank;
      const BufferId all = root ? stack(visit, program) : make_stack(held.count, samples * plan.ranks(), program);
      op.label.layer = -1;
      op.body = Broadcast{comm_, type_, Bytes(state_.value * plan.pieces * held.count), Peer{stage.rank, false}};
      program.emit.op(op, {root ? read(all) : write(all)});
      op.body = Copy{type_, type_, plan.hidden_bytes(SegmentKind::Head)};
      for (std::int64_t k = 0; k < held.count; ++k) {
        op.label.layer = static_cast<std::int32_t>(held.first + k);
        program.emit.op(op, {read(all, piece(k * plan.ranks() + program.rank, held.count * plan.ranks())),
                             write(own, piece(held.first + k, layers))});
      }
    }
    inspect(own, layers, visit, program);
  }

  void inspect(BufferId stack, std::int64_t layers, const Visit& visit, ProgramContext& program) const {
    const std::int64_t elements = layers * program.plan.hidden_bytes(SegmentKind::Head).value / size_of(type_);
    program.emit.compute(program.compute, {Phase::None, inspect_, -1, visit.chunk, program.plan.batch_of(visit.micro_batch), -1},
                         program.emit.builder().work(check_work(elements, type_)),
                         {read(stack), update(chunks_[static_cast<std::size_t>(visit.chunk)].figures)});
  }

  Chunk make_chunk(const StagePlan& stage, ProgramContext& program) const {
    const Scenario& scenario = *program.plan.scenario;
    const StageLayers own = layers_of(stage), inspected = shares_ ? StageLayers{0, scenario.model.layers} : own;
    Chunk chunk{own, {}, std::vector<BufferId>(static_cast<std::size_t>(scenario.micro_batches))};
    if (inspected.count == 0) return chunk;
    Layout figures{"hidden.figures", {}};
    const std::int64_t bytes = scenario.micro_batches * kFigures * size_of(DType::Fp32);
    for (std::int64_t k = 0; k < inspected.count; ++k)
      figures.tensors.push_back({fmt::format("layers.{}.input", inspected.first + k),
                                 DType::Fp32,
                                 {scenario.micro_batches, kFigures},
                                 Bytes(k * bytes)});
    chunk.figures = program.emit.resident(fmt::format("hidden.figures.{}", stage.stage), Category::Other, Bytes(inspected.count * bytes),
                                          program.emit.builder().layout(std::move(figures)));
    return chunk;
  }

  bool shares_;  // form bmtrain
  DType type_;
  Bytes state_;  // of a micro-batch of a layer
  NameId hidden_, inspect_;
  CommId comm_;
  std::vector<Chunk> chunks_;
};

}  // namespace

bool hidden_states_active(const Plan& plan) { return plan.scenario->hidden_states; }

std::unique_ptr<Mechanism> make_hidden_states(const Plan& plan, ScheduleBuilder& builder) {
  return std::make_unique<HiddenStates>(plan, builder);
}

}  // namespace steptwin
