// Pipeline messages: activations to the next stage, their gradients to the one before; b*s*h in the compute type, rendezvous.
//
//   lanes     four lanes (send_fwd, recv_fwd, send_bwd, recv_bwd) over communicators pp.fwd and pp.bwd. A lane exists where used.
//   one_lane  one lane p2p and one communicator pp for all.
//   grouped   as one_lane, with Megatron's fusions: a SEND_F directly followed by a RECV_B, and a SEND_B directly followed by a
//             RECV_F, form one group (send_forward_recv_backward, send_backward_recv_forward).
//   compute   all on the compute lane over communicator pp, as BMTrain 0.2 does: no overlap, and a rank computes nothing while it waits.
//   compute_recv  BMTrain 1.0: receives on the compute lane, sends on the lane p2p.
// metadata: a message of kMetadata bytes before each one, on the same lane; the receiving host waits for it, as it reads the shape that it
// will allocate (BMTrain; B-D07: both sides say 50 int32). Without it shapes are static.
// Where in the list a message stands is decided before the walk (place_messages.h).
#include <algorithm>
#include <array>

#include "schedule/mechanisms/all.h"
#include "schedule/orders/actions.h"

namespace steptwin {
namespace {

constexpr Bytes kMetadata{50 * 4};
constexpr std::array<const char*, 4> kLaneNames = {"send_fwd", "recv_fwd", "send_bwd", "recv_bwd"};

std::size_t slot(ActionKind kind) { return static_cast<std::size_t>(kind) - static_cast<std::size_t>(ActionKind::SendF); }
bool sends(ActionKind kind) { return kind == ActionKind::SendF || kind == ActionKind::SendB; }
bool forward(ActionKind kind) { return kind == ActionKind::SendF || kind == ActionKind::RecvF; }

class P2p : public Mechanism {
 public:
  P2p(const Plan& plan, ScheduleBuilder& builder) : mode_(plan.scenario->p2p), announces_(plan.scenario->p2p_metadata) {
    if (announces_) shape_ = builder.layout({"metadata", {{"metadata", DType::Int32, {kMetadata.value / 4}, {}}}});
    const bool lanes = mode_ == P2pMode::Lanes;
    forward_ = builder.communicator(lanes ? "pp.fwd" : "pp", {"pp"});
    backward_ = lanes ? builder.communicator("pp.bwd", {"pp"}) : forward_;
  }

  void begin(const Visits& visits, ProgramContext& program) override {
    std::array<bool, 4> used{};
    for (const Visit& visit : visits) {
      if (visit.kind == VisitKind::Message) used[slot(visit.message)] = true;
    }
    lanes_ = {};
    group_ = GroupId();
    if (std::none_of(used.begin(), used.end(), [](bool u) { return u; })) return;
    if (announces_) own_shape_ = program.emit.resident("metadata", Category::Other, kMetadata, shape_);
    const bool on_compute = mode_ == P2pMode::Compute || mode_ == P2pMode::ComputeRecv;
    if (on_compute) lanes_.fill(program.compute);
    if (mode_ == P2pMode::Compute) return;
    if (mode_ != P2pMode::Lanes) {
      const LaneId lane = program.emit.lane("p2p", Engine::Network, Priority::High);
      if (!on_compute) lanes_.fill(lane);
      for (const ActionKind kind : {ActionKind::SendF, ActionKind::SendB}) lanes_[slot(kind)] = lane;
      return;
    }
    for (std::size_t k = 0; k < used.size(); ++k) {
      if (used[k]) lanes_[k] = program.emit.lane(kLaneNames[k], Engine::Network, Priority::High);
    }
  }

  void before(const Visits& visits, std::size_t i, ProgramContext& program) override {
    const Visit& visit = visits[i];
    if (visit.kind != VisitKind::Message) return;
    const GroupId opened = group_;
    group_ = GroupId();
    if (!opened.valid() && mode_ == P2pMode::Grouped && i + 1 < visits.size() && fuse(visit, visits[i + 1]))
      group_ = program.emit.new_group();
    emit(visit, opened.valid() ? opened : group_, program);
  }

 private:
  static bool fuse(const Visit& first, const Visit& second) {
    if (second.kind != VisitKind::Message) return false;
    return (first.message == ActionKind::SendF && second.message == ActionKind::RecvB) ||
           (first.message == ActionKind::SendB && second.message == ActionKind::RecvF);
  }

  // The rank at the other end: of the next stage for SEND_F and RECV_B, of the stage before for the others.
  static Peer peer_of(const Visit& visit, const ProgramContext& program) {
    const bool next = visit.message == ActionKind::SendF || visit.message == ActionKind::RecvB;
    const std::int32_t peer = program.plan.stages[static_cast<std::size_t>(program.stage(visit.chunk).stage + (next ? 1 : -1))].rank;
    const std::int32_t step = peer - program.rank;
    return step == 1 || step == -1 ? Peer{step, true} : Peer{peer, false};
  }

  void emit(const Visit& visit, GroupId group, ProgramContext& program) {
    const Bytes bytes = program.plan.hidden_bytes(SegmentKind::Attention);
    const DType type = program.plan.scenario->compute;
    const CommId comm = forward(visit.message) ? forward_ : backward_;
    Op op;
    op.lane = lanes_[slot(visit.message)];
    op.group = group;
    op.label = {forward(visit.message) ? Phase::Forward : Phase::Backward, NameId(), -1, visit.chunk, visit.micro_batch, -1};
    if (announces_) announce(op, comm, visit, program);
    const TensorPlace tensor = operand(visit, bytes, program);
    if (sends(visit.message)) {
      op.body = Send{comm, type, bytes, peer_of(visit, program)};
      program.emit.op(op, {read(tensor.buffer, tensor.part)});
    } else {
      op.body = Recv{comm, type, bytes, peer_of(visit, program)};
      program.emit.op(op, {write(tensor.buffer, tensor.part)});
    }
  }

  void announce(Op op, CommId comm, const Visit& visit, ProgramContext& program) const {
    if (sends(visit.message)) {
      op.body = Send{comm, DType::Int32, kMetadata, peer_of(visit, program)};
      program.emit.op(op, {read(own_shape_)});
      return;
    }
    op.body = Recv{comm, DType::Int32, kMetadata, peer_of(visit, program)};
    program.emit.host_wait(program.emit.op(op, {write(program.emit.buffer(Category::RecvBuffer, kMetadata, shape_))}));
  }

  static TensorPlace operand(const Visit& visit, Bytes bytes, ProgramContext& program) {
    ChunkTensors& chunk = program.chunk(visit.chunk);
    const StagePlan& stage = program.stage(visit.chunk);
    if (visit.message == ActionKind::SendF) return chunk.value(visit.micro_batch, stage.out);
    if (visit.message == ActionKind::SendB) return chunk.gradient(visit.micro_batch, stage.in);
    const BufferId made =
        program.emit.buffer(Category::RecvBuffer, bytes, program.ids.hidden[static_cast<std::size_t>(SegmentKind::Attention)]);
    (visit.message == ActionKind::RecvF ? chunk.value(visit.micro_batch, stage.in) : chunk.gradient(visit.micro_batch, stage.out)) = made;
    return made;
  }

  P2pMode mode_;
  bool announces_;
  LayoutId shape_;
  BufferId own_shape_;  // what the program's sends announce
  CommId forward_, backward_;
  std::array<LaneId, 4> lanes_;  // [message kind]
  GroupId group_;                // opened by the message before, closed by the next one
};

}  // namespace

bool p2p_active(const Plan& plan) { return plan.ranks() > 1; }

std::unique_ptr<Mechanism> make_p2p(const Plan& plan, ScheduleBuilder& builder) { return std::make_unique<P2p>(plan, builder); }

}  // namespace steptwin
