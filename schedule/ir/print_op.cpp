#include <algorithm>

#include "schedule/ir/part_size.h"
#include "schedule/ir/text.h"
#include "schedule/ir/text_rules.h"

namespace steptwin {
namespace {

const char* mode_word(AccessMode mode) {
  switch (mode) {
    case AccessMode::Read:
      return " read";
    case AccessMode::Write:
      return " write";
    case AccessMode::Update:
      return " update";
    case AccessMode::Hold:
      return " hold";
  }
  return " ?";
}

void append_unknown(std::string& out, std::uint32_t id) {
  out += '?';
  append_number(out, id);
}

// Writes one op; tolerates ids out of range, because error messages print ops of schedules that may be unsound.
class OpPrinter {
 public:
  OpPrinter(const Schedule& schedule, const Program& program, const Handles& buffers, std::string& out)
      : s_(schedule), program_(program), buffers_(buffers), out_(out) {}

  void print(OpId id) {
    const Op& op = s_.ops[id.value];
    append_number(out_, local(id));
    out_ += ' ';
    out_ += kind_name(op.body);
    append_communicator(op.body);
    append_label(op.label);
    append_body(op.body, op.label, s_.accesses_of(id));
    append_accesses(s_.accesses_of(id));
    append_order(op, s_.deps_of(id));
  }

 private:
  std::int64_t local(OpId id) const { return std::int64_t{id.value} - program_.first_op.value; }

  void append_communicator(const OpBody& body) {
    const CommId comm = comm_of(body);
    if (comm.valid()) {
      out_ += " on ";
      append_comm(comm.value);
    }
    if (const auto* send = std::get_if<Send>(&body)) append_peer(" to ", send->to);
    if (const auto* recv = std::get_if<Recv>(&body)) append_peer(" from ", recv->from);
    if (const auto* broadcast = std::get_if<Broadcast>(&body)) append_peer(" root ", broadcast->root);
    if (const auto* wait = std::get_if<HostWait>(&body)) out_ += " for ", append_number(out_, local(wait->target));
  }

  void append_comm(std::uint32_t comm) {
    if (comm < s_.communicators.size()) {
      append_name(out_, s_.communicators[comm].name);
    } else {
      append_unknown(out_, comm);
    }
  }

  void append_peer(const char* word, Peer peer) {
    out_ += word;
    if (peer.relative && peer.value >= 0) out_ += '+';
    append_number(out_, peer.value);
  }

  void append_name_id(NameId id) {
    if (!id.valid()) return;
    out_ += ' ';
    if (id.value < s_.names.size()) {
      append_segment(out_, s_.names[id.value]);
    } else {
      append_unknown(out_, id.value);
    }
  }

  void append_tag(const char* tag, std::int32_t value) {
    if (value == -1) return;
    out_ += tag;
    append_number(out_, value);
  }

  void append_phase(Phase phase) {
    if (phase == Phase::None) return;
    out_ += ' ';
    out_ += name_of(phase);
  }

  void append_label(const Label& label) {
    append_phase(label.phase);
    append_name_id(label.segment);
    append_tag(" L", label.layer);
    append_tag(" c", label.chunk);
    append_tag(" mb", label.micro_batch);
    append_tag(" s", label.slice);
  }

  void append_part(const ComputePart& part) {
    append_phase(part.phase);
    append_name_id(part.segment);
    append_tag(" L", part.layer);
    append_tag(" mb", part.micro_batch);
    append_work(part.work);
  }

  void append_work(WorkId work) {
    if (!work.valid()) return;
    out_ += " work w";
    append_number(out_, work.value);
  }

  void append_parts(const Compute& compute, const Label& label) {
    if (std::uint64_t{compute.first_part} + compute.part_count > s_.parts.size()) return;
    const auto parts = s_.parts_of(compute);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ComputePart implied{label.phase, label.segment, label.layer, label.micro_batch, parts[i].work};
      if (i == 0 && parts[i] == implied) {
        append_work(parts[i].work);
        continue;
      }
      out_ += i == 0 ? " of" : " +";
      append_part(parts[i]);
    }
  }

  void append_payload(Bytes bytes, DType dtype, const Payload& implied) {
    if (bytes != implied.bytes) out_ += " bytes ", append_size(out_, bytes);
    if (dtype != implied.dtype) out_ += " dtype ", out_ += name_of(dtype);
  }

  void append_copy(const Copy& copy, const Payload& implied) {
    append_payload(copy.bytes, copy.from, implied);
    if (copy.to == implied.to.value_or(copy.from)) return;
    if (copy.from == implied.dtype) out_ += " dtype ", out_ += name_of(copy.from);
    out_ += " to ", out_ += name_of(copy.to);
  }

  void append_body(const OpBody& body, const Label& label, std::span<const Access> accesses) {
    const auto payload = [&](const auto& op) { append_payload(op.bytes, op.dtype, implied_payload(s_, program_, body, accesses)); };
    std::visit(Overloaded{
                   [&](const Compute& op) { append_parts(op, label); },
                   [&](const AllReduce& op) {
                     if (op.reduction == AllReduce::Reduction::Max) out_ += " max";
                     payload(op);
                   },
                   [&](const Copy& op) { append_copy(op, implied_payload(s_, program_, body, accesses)); },
                   [](const HostWait&) {},
                   [&](const AllGather& op) { payload(op); },
                   [&](const ReduceScatter& op) { payload(op); },
                   [&](const Broadcast& op) { payload(op); },
                   [&](const AllToAll& op) { payload(op); },
                   [&](const Send& op) { payload(op); },
                   [&](const Recv& op) { payload(op); },
               },
               body);
  }

  void append_tensor(const Access& access) {
    const LayoutId layout = access.buffer.value < program_.buffers.size() ? program_.buffers[access.buffer.value].layout : LayoutId();
    if (layout.value < s_.layouts.size() && access.part.a < s_.layouts[layout.value].tensors.size()) {
      const auto& tensors = s_.layouts[layout.value].tensors;
      const std::string& name = tensors[access.part.a].name;
      if (std::count_if(tensors.begin(), tensors.end(), [&](const TensorSpec& t) { return t.name == name; }) == 1)
        return append_name(out_, name);
    }
    append_number(out_, access.part.a);
  }

  void append_part_of(const Access& access) {
    switch (access.part.kind) {
      case Part::Kind::Whole:
        return;
      case Part::Kind::Tensor:
        out_ += "[tensor ", append_tensor(access);
        break;
      case Part::Kind::Shard:
        out_ += "[shard ", append_comm(access.part.a);
        break;
      case Part::Kind::Piece: {
        out_ += "[piece ", append_number(out_, access.part.a);
        out_ += '/', append_number(out_, access.part.b);
        break;
      }
    }
    out_ += ']';
  }

  void append_accesses(std::span<const Access> accesses) {
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      if (i == 0 || accesses[i].mode != accesses[i - 1].mode) out_ += mode_word(accesses[i].mode);
      out_ += ' ';
      buffers_.append(out_, accesses[i].buffer.value);
      append_part_of(accesses[i]);
    }
  }

  void append_order(const Op& op, std::span<const OpId> deps) {
    if (op.lane.valid()) {
      out_ += " lane ";
      if (op.lane.value < program_.lanes.size()) {
        append_name(out_, program_.lanes[op.lane.value].name);
      } else {
        append_unknown(out_, op.lane.value);
      }
    }
    if (!deps.empty()) {
      std::vector<std::int64_t> locals;
      for (OpId dep : deps) locals.push_back(local(dep));
      out_ += " after ";
      append_list(out_, locals);
    }
    if (op.group.valid()) out_ += " group ", append_number(out_, op.group.value);
    if (op.guard.valid()) out_ += " when ", buffers_.append(out_, op.guard.value);
    if (op.given != Duration(-1)) out_ += " time ", append_time(out_, op.given);
  }

  const Schedule& s_;
  const Program& program_;
  const Handles& buffers_;
  std::string& out_;
};

}  // namespace

void append_op(std::string& out, const Schedule& schedule, const Program& program, const Handles& buffers, OpId op) {
  OpPrinter(schedule, program, buffers, out).print(op);
}

std::string print_op(const Schedule& schedule, OpId op) {
  std::string out;
  if (op.value >= schedule.ops.size()) {
    append_unknown(out, op.value);
    return out;
  }
  const Program& program = schedule.program_of(op);
  const Handles buffers = Handles::of_buffers(schedule, program);
  append_op(out, schedule, program, buffers, op);
  return out;
}

}  // namespace steptwin
