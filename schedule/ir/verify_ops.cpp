// RANGE and LABEL: the ids and numbers of every op, and what holds for host waits, guards and groups.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "schedule/ir/limits.h"
#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

bool is_tag(std::int32_t value) { return value >= -1 && value <= kMaxLabel; }
bool is_phase(Phase phase) { return phase <= Phase::Update; }
bool is_dtype(DType dtype) { return static_cast<std::size_t>(dtype) < kDTypes; }

bool is_one_element(const Schedule& s, const Buffer& buffer) {
  if (buffer.layout.valid()) {
    const auto& tensors = s.layouts[buffer.layout.value].tensors;
    return tensors.size() == 1 &&
           std::all_of(tensors[0].shape.begin(), tensors[0].shape.end(), [](std::int64_t extent) { return extent == 1; });
  }
  const std::int64_t bytes = buffer.bytes.value;  // 0: a hand-written schedule without sizes
  return bytes == 0 || bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

class OpChecker {
 public:
  OpChecker(const Schedule& schedule, const Program& program, Findings& findings) : s_(schedule), program_(program), findings_(findings) {}

  void check(OpId id) {
    id_ = id;
    const Op& op = s_.ops[id.value];
    check_label(op);
    check_lane(op);
    check_body(op.body);
    for (const Access& access : s_.accesses_of(id)) check_access(access);
    check_order(op);
    check_guard(op);
    check_group(op);
  }

 private:
  void range(std::string text, std::string help = {}) { findings_.at_op(id_, "RANGE", std::move(text), std::move(help)); }
  void label(std::string text, std::string help = {}) { findings_.at_op(id_, "LABEL", std::move(text), std::move(help)); }

  bool is_name(NameId name) const { return !name.valid() || name.value < s_.names.size(); }

  void check_label(const Op& op) {
    const Label& l = op.label;
    if (!is_phase(l.phase) || !is_name(l.segment) || !is_tag(l.layer) || !is_tag(l.chunk) || !is_tag(l.micro_batch) || !is_tag(l.slice))
      range("its label has a number out of bounds", "layer, chunk, micro-batch and slice are -1 (none) or counts from 0");
    if (op.given != Duration(-1) && (op.given < Duration(0) || ns(op.given) > kMaxTimeNs))
      range(fmt::format("its given time {} ns is out of bounds", ns(op.given)), "-1 means not given");
  }

  void check_lane(const Op& op) {
    const bool waits = std::holds_alternative<HostWait>(op.body);
    if (waits && op.lane.valid()) label("a host_wait has a lane", "it holds the issuing thread, not a lane: leave the lane out");
    if (!waits && !op.lane.valid()) range("it has no lane", "every op but host_wait runs on a lane");
    if (op.lane.valid() && op.lane.value >= program_.lanes.size()) range(fmt::format("lane {} does not exist", op.lane.value));
  }

  bool is_earlier(OpId other) const { return other.value >= program_.first_op.value && other < id_; }

  void check_compute(const Compute& compute) {
    for (const ComputePart& part : s_.parts_of(compute)) {
      const bool work_ok = !part.work.valid() || part.work.value < s_.works.size();
      if (!is_phase(part.phase) || !is_name(part.segment) || !is_tag(part.layer) || !is_tag(part.micro_batch) || !work_ok)
        range("one of its parts has a name, work or number out of bounds");
    }
  }

  void check_transfer(CommId comm, DType dtype, Bytes bytes) {
    if (comm.value >= s_.communicators.size()) range("its communicator does not exist");
    if (!is_dtype(dtype)) range("its dtype does not exist");
    check_bytes(bytes);
  }

  void check_bytes(Bytes bytes) {
    if (bytes < Bytes(0) || bytes > Bytes(kMaxBytes)) range(fmt::format("its {} bytes are out of bounds", bytes.value));
  }

  void check_peer(Peer peer) {
    if (std::abs(static_cast<std::int64_t>(peer.value)) > static_cast<std::int64_t>(kMaxRanks))
      range(fmt::format("its peer {} is out of bounds", peer.value));
  }

  void check_body(const OpBody& body) {
    std::visit(Overloaded{
                   [&](const Compute& op) { check_compute(op); },
                   [&](const Copy& op) {
                     if (!is_dtype(op.from) || !is_dtype(op.to)) range("its dtype does not exist");
                     check_bytes(op.bytes);
                   },
                   [&](const HostWait& op) {
                     if (!is_earlier(op.target))
                       range("it waits for no earlier op of its program", "wait for an op that was issued before");
                   },
                   [&](const AllGather& op) { check_transfer(op.comm, op.dtype, op.bytes); },
                   [&](const ReduceScatter& op) { check_transfer(op.comm, op.dtype, op.bytes); },
                   [&](const AllReduce& op) {
                     check_transfer(op.comm, op.dtype, op.bytes);
                     if (op.reduction > AllReduce::Reduction::Max) range("its reduction does not exist");
                   },
                   [&](const Broadcast& op) { check_transfer(op.comm, op.dtype, op.bytes), check_peer(op.root); },
                   [&](const AllToAll& op) { check_transfer(op.comm, op.dtype, op.bytes); },
                   [&](const Send& op) { check_transfer(op.comm, op.dtype, op.bytes), check_peer(op.to); },
                   [&](const Recv& op) { check_transfer(op.comm, op.dtype, op.bytes), check_peer(op.from); },
               },
               body);
  }

  void check_access(const Access& access) {
    const Part& part = access.part;
    if (access.buffer.value >= program_.buffers.size()) return range(fmt::format("buffer {} does not exist", access.buffer.value));
    if (access.mode > AccessMode::Hold || part.kind > Part::Kind::Piece) return range("an access has no valid mode or part");
    if (part.kind == Part::Kind::Shard && part.a >= s_.communicators.size()) range("a shard names a communicator that does not exist");
    const bool stray = (part.kind == Part::Kind::Whole && part.a != 0) || (part.kind != Part::Kind::Piece && part.b != 0);
    if (stray) range("a part has a number that its kind does not use");
  }

  void check_order(const Op& op) {
    for (OpId dep : s_.deps_of(id_)) {
      if (!is_earlier(dep)) {
        range(fmt::format("its dependency on op {} does not point back in its program", std::int64_t{dep.value} - program_.first_op.value),
              "an op may only come after ops issued before it");
      } else if (op.group.valid() && s_.ops[dep.value].group == op.group) {
        const OpId related[] = {dep};
        findings_.at_op(id_, "LABEL", "it depends on an op of its own group",
                        "ops of a group end together: leave one of them out of the group", related);
      }
    }
  }

  void check_guard(const Op& op) {
    if (!op.guard.valid()) return;
    if (op.guard.value >= program_.buffers.size()) return range("its guard does not exist");
    if (!is_one_element(s_, program_.buffers[op.guard.value]))
      label(fmt::format("its guard {} is not a one-element buffer", s_.buffer_name(program_, op.guard)),
            "a guard holds one value: true or false");
  }

  void check_group(const Op& op) {
    if (!op.group.valid()) return;
    const auto [it, fresh] = last_of_group_.try_emplace(op.group.value, id_);
    const OpId before = it->second;
    it->second = id_;
    const OpId related[] = {before};
    if (!comm_of(op.body).valid()) {
      label("it is in a group but does not communicate", "only communication ops form groups");
    } else if (!fresh && before.value + 1 != id_.value) {
      findings_.at_op(id_, "LABEL", fmt::format("group {} is not a run of consecutive ops", op.group.value),
                      "number the second run as a group of its own", related);
    } else if (!fresh && s_.ops[before.value].lane != op.lane) {
      findings_.at_op(id_, "LABEL", fmt::format("group {} spans two lanes", op.group.value), "a group is one launch on one lane", related);
    }
  }

  const Schedule& s_;
  const Program& program_;
  Findings& findings_;
  OpId id_;
  std::unordered_map<std::uint32_t, OpId> last_of_group_;
};

}  // namespace

void check_ops(const Schedule& s, Findings& findings) {
  for (const Program& program : s.programs) {
    OpChecker checker(s, program, findings);
    for (std::uint32_t i = 0; i < program.op_count && !findings.full(); ++i) checker.check(OpId(program.first_op.value + i));
  }
}

}  // namespace steptwin
