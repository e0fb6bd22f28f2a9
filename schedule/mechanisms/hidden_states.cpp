// Hidden states returned and inspected, as BMTrain's TransformerBlockList(return_hidden_states) and its inspector do (specs/bmtrain.md 5,
// 6): the input of every layer is copied into a stack of the stage's layers, which the caller of the forward gets: an extra buffer of that
// many hidden states per micro-batch. Behind the stage's last layer it is inspected: mean, deviation, least and largest value of each. All
// on the compute lane. The stack dies there; its gradient is zero, so nothing is added to what the layers hand down.
#include <fmt/format.h>

#include "schedule/mechanisms/all.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {
namespace {

constexpr std::int64_t kFigures = 4;

class HiddenStates : public Mechanism {
 public:
  HiddenStates(const Plan&, ScheduleBuilder& builder) : hidden_(builder.name("hidden")), inspect_(builder.name("inspect")) {}

  void begin(const Visits&, ProgramContext& program) override {
    chunks_.clear();
    for (std::size_t chunk = 0; chunk < program.tensors.chunks.size(); ++chunk)
      chunks_.push_back(make_chunk(program.stage(static_cast<std::int32_t>(chunk)), program));
  }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    const Visit& visit = visits[i];
    if (!is_forward(visit) || program.segment(visit).kind != SegmentKind::Attention) return;
    Chunk& chunk = chunks_[static_cast<std::size_t>(visit.chunk)];
    const std::int64_t place = program.segment(visit).layer - chunk.first_layer;
    BufferId& stack = chunk.stacks[static_cast<std::size_t>(visit.micro_batch)];
    const Bytes bytes = program.plan.hidden_bytes(SegmentKind::Attention);
    if (place == 0) stack = program.emit.buffer(Category::Activation, Bytes(bytes.value * chunk.layers), chunk.stack_layout);
    const DType type = program.plan.scenario->compute;
    Op op;
    op.body = Copy{type, type, bytes};
    op.lane = program.compute;
    op.label = {Phase::Forward, hidden_, program.segment(visit).layer, visit.chunk, visit.micro_batch, -1};
    const TensorPlace& input = program.chunk(visit.chunk).value(visit.micro_batch, static_cast<std::size_t>(visit.segment));
    program.emit.op(op, {read(input.buffer, input.part),
                         write(stack, {Part::Kind::Piece, static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(chunk.layers)})});
  }

  void after(const Visits& visits, std::size_t i, ProgramContext& program) override {
    const Visit& visit = visits[i];
    if (!is_forward(visit) || program.segment(visit).kind != SegmentKind::Mlp) return;
    const Chunk& chunk = chunks_[static_cast<std::size_t>(visit.chunk)];
    if (program.segment(visit).layer + 1 != chunk.first_layer + chunk.layers) return;
    const DType type = program.plan.scenario->compute;
    const std::int64_t elements = chunk.layers * program.plan.hidden_bytes(SegmentKind::Attention).value / size_of(type);
    program.emit.compute(program.compute, {Phase::None, inspect_, -1, visit.chunk, visit.micro_batch, -1},
                         program.emit.builder().work(check_work(elements, type)),
                         {read(chunk.stacks[static_cast<std::size_t>(visit.micro_batch)]), update(chunk.figures)});
  }

 private:
  struct Chunk {
    std::int64_t first_layer = 0, layers = 0;
    LayoutId stack_layout;
    BufferId figures;              // resident, fp32 [micro-batches, 4] of each layer
    std::vector<BufferId> stacks;  // [micro-batch]
  };

  static bool is_forward(const Visit& visit) { return visit.kind == VisitKind::Segment && visit.phase == Phase::Forward; }

  static Chunk make_chunk(const StagePlan& stage, ProgramContext& program) {
    const Scenario& scenario = *program.plan.scenario;
    Chunk chunk;
    Layout figures{"hidden.figures", {}};
    const std::int64_t bytes = scenario.micro_batches * kFigures * size_of(DType::Fp32);
    for (const SegmentPlan& segment : stage.segments) {
      if (segment.kind != SegmentKind::Attention) continue;
      if (chunk.layers++ == 0) chunk.first_layer = segment.layer;
      figures.tensors.push_back({fmt::format("layers.{}.input", segment.layer),
                                 DType::Fp32,
                                 {scenario.micro_batches, kFigures},
                                 Bytes((chunk.layers - 1) * bytes)});
    }
    if (chunk.layers == 0) return chunk;
    ScheduleBuilder& builder = program.emit.builder();
    const BatchShape& batch = scenario.batch;
    chunk.stack_layout = builder.layout(
        {"hidden.stack", {{"hidden", scenario.compute, {chunk.layers, batch.micro_batch, batch.sequence, scenario.model.hidden}, {}}}});
    chunk.figures = program.emit.resident(fmt::format("hidden.figures.{}", stage.stage), Category::Other, Bytes(chunk.layers * bytes),
                                          builder.layout(std::move(figures)));
    chunk.stacks.resize(static_cast<std::size_t>(scenario.micro_batches));
    return chunk;
  }

  NameId hidden_, inspect_;
  std::vector<Chunk> chunks_;
};

}  // namespace

bool hidden_states_active(const Plan& plan) { return plan.scenario->hidden_states; }

std::unique_ptr<Mechanism> make_hidden_states(const Plan& plan, ScheduleBuilder& builder) {
  return std::make_unique<HiddenStates>(plan, builder);
}

}  // namespace steptwin
