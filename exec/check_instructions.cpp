// The static checks of a lowered program. Written against the instructions alone: clocks here follow RECORD and WAIT as an executor would.
#include <fmt/format.h>

#include <algorithm>

#include "exec/lower.h"
#include "exec/program_order.h"
#include "schedule/ir/liveness.h"

namespace steptwin {
namespace {

using Kind = Instruction::Kind;
using Clock = std::vector<std::uint32_t>;

class ListCheck {
 public:
  ListCheck(const Schedule& schedule, const ProgramTables& tables, const InstructionList& list)
      : schedule_(schedule), program_(schedule.programs[tables.program.value]), order_(schedule, tables), list_(list) {
    buffers_.resize(program_.buffers.size());
    lanes_.assign(order_.lanes(), Clock(order_.lanes()));
    host_.resize(order_.lanes());
    events_.resize(list.event_op.size());
    recorded_.resize(list.event_op.size());
  }

  std::vector<Diagnostic> run() {
    for (const Instruction& i : list_.instructions) step(i);
    if (next_mark_ != order_.ops() || next_work_ != order_.ops())
      problem("LIST-ORDER", fmt::format("op {} is never issued", std::min(next_mark_, next_work_)));
    for (std::size_t b = 0; b < buffers_.size(); ++b)
      if (buffers_[b] == State::Live && !program_.buffers[b].lazy) problem("LIST-BUFFER", fmt::format("buffer {} is never freed", b));
    return std::move(problems_);
  }

 private:
  enum class State : std::uint8_t { Fresh, Live, Freed };

  void problem(const char* code, std::string text) {
    Diagnostic diagnostic;
    diagnostic.code = code;
    diagnostic.text = fmt::format("program {}: {}", program_.name, text);
    problems_.push_back(std::move(diagnostic));
  }

  void step(const Instruction& i) {
    switch (i.kind) {
      case Kind::Alloc: change(i, State::Fresh, State::Live); break;
      case Kind::Free: change(i, State::Live, State::Freed); break;
      case Kind::Mark: mark(i.op); break;
      case Kind::Record: record(i); break;
      case Kind::Wait: wait(i, lanes_[i.lane]); break;
      case Kind::HostWait:
        if (i.value != Instruction::kNoEvent) wait(i, host_);
        work(i.op, 1);
        break;
      case Kind::Group: work(i.op, i.value); break;
      case Kind::Launch:
      case Kind::Copy:
      case Kind::Collective:
      case Kind::Message: work(i.op, 1); break;
    }
  }

  void change(const Instruction& i, State from, State to) {
    if (buffers_[i.value] != from)
      problem("LIST-BUFFER", fmt::format("{} of buffer {} at op {} out of turn", name_of(i.kind), i.value, i.op));
    buffers_[i.value] = to;
  }

  void mark(std::uint32_t op) {
    if (op != next_mark_++) problem("LIST-ORDER", fmt::format("op {} is marked out of order", op));
    const bool on_host = order_.is_host_wait(op);
    for (const Access& access : schedule_.accesses_of(OpId(program_.first_op.value + op))) {
      const Buffer& buffer = program_.buffers[access.buffer.value];
      if (held_before(buffer, Repetition::First) || buffers_[access.buffer.value] == State::Live) continue;
      if (!on_host) problem("LIST-BUFFER", fmt::format("op {} uses buffer {} outside its life", op, access.buffer.value));
    }
  }

  void record(const Instruction& i) {
    if (recorded_[i.value]) problem("LIST-EVENT", fmt::format("event {} is recorded twice", i.value));
    recorded_[i.value] = true;
    events_[i.value] = lanes_[i.lane];
  }

  void wait(const Instruction& i, Clock& clock) {
    if (!recorded_[i.value]) return problem("LIST-EVENT", fmt::format("op {} waits for event {} before it is recorded", i.op, i.value));
    join(clock, events_[i.value]);
  }

  static void join(Clock& into, const Clock& from) {
    for (std::size_t l = 0; l < into.size(); ++l) into[l] = std::max(into[l], from[l]);
  }

  void work(std::uint32_t first, std::uint32_t count) {
    if (first != next_work_ || first + count - 1 != order_.last_of_unit(first))
      problem("LIST-ORDER", fmt::format("op {} is launched out of order", first));
    next_work_ = first + count;
    if (order_.is_host_wait(first)) return;
    Clock& clock = lanes_[order_.lane(first)];
    join(clock, host_);
    for (std::uint32_t op = first; op < first + count; ++op) {
      order_.each_edge(op, [&](std::uint32_t u) {
        const bool implied = order_.is_host_wait(u) || u >= first || clock[order_.lane(u)] > order_.place(order_.last_of_unit(u));
        if (!implied) problem("LIST-WAIT", fmt::format("nothing makes op {} wait for op {}", op, u));
      });
    }
    clock[order_.lane(first)] = order_.place(first + count - 1) + 1;
  }

  const Schedule& schedule_;
  const Program& program_;
  ProgramOrder order_;
  const InstructionList& list_;
  std::vector<State> buffers_;
  std::vector<Clock> lanes_, events_;
  Clock host_;
  std::vector<bool> recorded_;
  std::uint32_t next_mark_ = 0, next_work_ = 0;
  std::vector<Diagnostic> problems_;
};

}  // namespace

std::vector<Diagnostic> check_instructions(const Schedule& schedule, const ProgramTables& tables, const InstructionList& list) {
  return ListCheck(schedule, tables, list).run();
}

}  // namespace steptwin
