#include "schedule/mechanisms/segment_ops.h"

#include "schedule/base/error.h"

namespace steptwin {
namespace {

constexpr Bytes kRandomState{16};  // as BMTrain keeps one per block and micro-batch (specs/bmtrain.md 3)

// Builds the operands of one visit.
class SegmentOp {
 public:
  SegmentOp(const Visit& visit, ProgramContext& program)
      : visit_(visit),
        program_(program),
        stage_(program.stage(visit.chunk)),
        segment_(program.segment(visit)),
        cost_(program.plan.cost(segment_.kind)),
        chunk_(program.chunk(visit.chunk)),
        home_(program.home(visit.chunk, visit.segment)),
        index_(static_cast<std::size_t>(visit.segment)),
        accesses_(program.operands) {
    accesses_.clear();
  }

  void emit() {
    switch (visit_.phase) {
      case Phase::Forward:
      case Phase::Recompute:
        forward();
        break;
      case Phase::Backward:
        backward();
        break;
      case Phase::InputGrad:
        input_grad();
        break;
      case Phase::WeightGrad:
        weight_grad();
        break;
      case Phase::None:
      case Phase::Update:
        invariant(false, "a segment visit has a phase of the network");
    }
    for (const BufferId buffer : home_.held) accesses_.push_back(hold(buffer));
    const std::int32_t micro_batch = program_.plan.shown_micro_batch(segment_.kind, visit_.micro_batch);
    const Label label{visit_.phase, program_.ids.segment[kind()], segment_.layer, visit_.chunk, micro_batch, -1};
    program_.last_compute =
        program_.emit.compute(program_.compute, label, program_.ids.work[kind()][static_cast<std::size_t>(visit_.phase)], accesses_);
    if (visit_.slot >= 0) use_slot();
  }

 private:
  std::size_t kind() const { return static_cast<std::size_t>(segment_.kind); }
  bool is_embedding() const { return segment_.kind == SegmentKind::Embedding; }
  bool is_head() const { return segment_.kind == SegmentKind::Head; }
  bool shares_table() const { return program_.plan.tying == Tying::Local; }

  void add_read(BufferId buffer) {
    invariant(buffer.valid(), "a visit reads what an earlier one made");
    accesses_.push_back(read(buffer));
  }
  void add_read(const TensorPlace& tensor) {
    invariant(tensor.buffer.valid(), "a visit reads what an earlier one made");
    accesses_.push_back(read(tensor.buffer, tensor.part));
  }
  void read_ids(BufferId ids) {
    accesses_.push_back(read(ids, {Part::Kind::Piece, static_cast<std::uint32_t>(program_.plan.batch_of(visit_.micro_batch)),
                                   static_cast<std::uint32_t>(program_.plan.scenario->micro_batches)}));
  }
  void read_parameters() {
    for (const BufferId buffer : home_.param) accesses_.push_back(read(buffer));
    if (!is_head() || !shares_table()) return;
    const auto [buffer, part] = table_of(embedding_home().param, program_.plan.table_tensor);
    accesses_.push_back(read(buffer, part));
  }
  void workspace(Bytes bytes) {
    if (bytes.value > 0) accesses_.push_back(write(program_.emit.buffer(Category::Workspace, bytes)));
  }

  SegmentHome& embedding_home() { return program_.home(0, 0); }  // the stage of the embedding is its rank's first chunk

  // A gradient contribution: the step's first one writes.
  static Access contribution(BufferId buffer, bool& written, Part part = {}) {
    const Access access{buffer, written ? AccessMode::Update : AccessMode::Write, part};
    written = true;
    return access;
  }
  void add_gradients() {
    if (is_embedding() && shares_table() && !home_.zeroed) return add_gradients_by_tensor();
    for (const BufferId buffer : home_.gradient) {
      bool written = home_.zeroed || home_.gradient_written;
      accesses_.push_back(contribution(buffer, written));
    }
    home_.gradient_written = true;
    if (is_head() && shares_table()) add_table_gradient();
  }
  void add_table_gradient() {
    const auto [buffer, part] = table_of(embedding_home().gradient, program_.plan.table_tensor);
    bool& written = program_.tensors.table_gradient_written;
    written = written || embedding_home().zeroed;
    accesses_.push_back(contribution(buffer, written, part));
  }
  void add_gradients_by_tensor() {
    for (std::uint32_t tensor = 0; tensor < segment_.parameters.size(); ++tensor) {
      bool written = tensor == program_.plan.table_tensor ? program_.tensors.table_gradient_written : home_.gradient_written;
      const auto [buffer, part] = table_of(home_.gradient, tensor);
      accesses_.push_back(contribution(buffer, written, part));
    }
    program_.tensors.table_gradient_written = home_.gradient_written = true;
  }

  // Recomputed tensors take the place of those that died; a layer's recomputed output is not needed by anyone.
  void forward() {
    const bool again = visit_.phase == Phase::Recompute;
    const Category category = again ? Category::Recompute : Category::Activation;
    if (is_embedding())
      read_ids(program_.tensors.tokens);
    else
      add_read(chunk_.value(visit_.micro_batch, index_));
    if (is_head()) read_ids(program_.tensors.targets);
    read_parameters();
    if (again && draws_again()) add_read(chunk_.random(visit_.micro_batch, index_));
    if (cost_.saved_bytes.value > 0) {
      chunk_.saved(visit_.micro_batch, index_) = program_.emit.buffer(category, cost_.saved_bytes, program_.ids.saved[kind()]);
      accesses_.push_back(write(chunk_.saved(visit_.micro_batch, index_)));
    }
    const BufferId output = program_.emit.buffer(is_head() ? Category::Other : category, cost_.output_bytes,
                                                 is_head() ? program_.ids.loss : program_.ids.hidden[kind()]);
    accesses_.push_back(write(output));
    if (!again && draws_again()) save_random_state();
    workspace(cost_.forward_workspace);
    output_ = output;
    if (!again || segment_.kind == SegmentKind::Attention || visit_.hands_on) publish_output(output);
    if (again && visit_.opens) wait_for_gradient();
  }

  // A layer's masks are drawn again when it is recomputed, from the state that its forward began with.
  bool draws_again() const { return program_.ids.random.valid() && !is_embedding() && !is_head(); }
  void save_random_state() {
    chunk_.random(visit_.micro_batch, index_) = program_.emit.on_host(Category::Other, kRandomState, program_.ids.random);
    accesses_.push_back(write(chunk_.random(visit_.micro_batch, index_)));
  }

  // Forward: the input is the slot. Again: the output replaces what the slot held, the input of a layer that is done.
  void use_slot() {
    BufferId& slot = chunk_.slot(visit_.micro_batch, visit_.slot);
    if (visit_.phase == Phase::Forward) {
      slot = chunk_.value(visit_.micro_batch, index_).buffer;
      return;
    }
    const DType type = program_.plan.scenario->compute;
    Op op;
    op.body = Copy{type, type, cost_.output_bytes};
    op.lane = program_.compute;
    op.label = {Phase::Recompute, NameId(), segment_.layer, visit_.chunk, visit_.micro_batch, -1};
    program_.last_compute = program_.emit.op(op, {read(output_), write(slot)});
    chunk_.value(visit_.micro_batch, index_ + 1) = slot;
  }

  // The stage's output is also the input of a next stage on the same rank.
  void publish_output(BufferId output) {
    chunk_.value(visit_.micro_batch, index_ + 1) = output;
    if (index_ + 1 != stage_.out || program_.plan.last_stage(stage_)) return;
    const StagePlan& next = program_.plan.stages[static_cast<std::size_t>(stage_.stage) + 1];
    if (next.rank == program_.rank) program_.chunk(next.chunk).value(visit_.micro_batch, next.in) = output;
  }

  // Frameworks recompute inside the backward call, which starts when the gradient of the stage's output has arrived.
  void wait_for_gradient() {
    const BufferId gradient = chunk_.gradient(visit_.micro_batch, stage_.out).buffer;
    if (gradient.valid()) program_.emit.next_waits_for(gradient);
  }

  void read_backward_inputs() {
    if (is_head())
      read_ids(program_.tensors.targets);
    else
      add_read(chunk_.gradient(visit_.micro_batch, index_ + 1));
    if (is_embedding()) read_ids(program_.tensors.tokens);
    if (cost_.saved_bytes.value > 0) add_read(chunk_.saved(visit_.micro_batch, index_));
    if (cost_.keeps_input && !is_embedding()) add_read(chunk_.value(visit_.micro_batch, index_));
    if (!is_embedding()) read_parameters();
    if (is_head() && program_.tensors.loss_scale.valid()) add_read(program_.tensors.loss_scale);
  }

  void write_input_gradient() {
    if (is_embedding()) return;
    const BufferId gradient =
        program_.emit.buffer(Category::Workspace, program_.plan.hidden_bytes(segment_.kind), program_.ids.hidden[kind()]);
    accesses_.push_back(write(gradient));
    chunk_.gradient(visit_.micro_batch, index_) = gradient;
    if (index_ != stage_.in || stage_.stage == 0) return;
    const StagePlan& before = program_.plan.stages[static_cast<std::size_t>(stage_.stage) - 1];
    if (before.rank == program_.rank) program_.chunk(before.chunk).gradient(visit_.micro_batch, before.out) = gradient;
  }

  void backward() {
    read_backward_inputs();
    write_input_gradient();
    add_gradients();
    workspace(cost_.backward_workspace);
  }

  void input_grad() {
    read_backward_inputs();
    write_input_gradient();
    BufferId& kept = chunk_.kept(visit_.micro_batch, index_);
    kept = program_.emit.buffer(Category::Activation, cost_.kept_for_weight_grad);
    accesses_.push_back(write(kept));
    workspace(cost_.backward_workspace);
  }

  void weight_grad() {
    if (is_embedding()) return backward();
    add_read(chunk_.kept(visit_.micro_batch, index_));
    add_gradients();
  }

  const Visit& visit_;
  ProgramContext& program_;
  const StagePlan& stage_;
  const SegmentPlan& segment_;
  const SegmentCost& cost_;
  ChunkTensors& chunk_;
  SegmentHome& home_;
  std::size_t index_;
  BufferId output_;  // of a forward
  std::vector<Access>& accesses_;
};

}  // namespace

void emit_segment(const Visit& visit, ProgramContext& program) { SegmentOp(visit, program).emit(); }

}  // namespace steptwin
