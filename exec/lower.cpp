#include "exec/lower.h"

#include <fmt/format.h>

#include <algorithm>

#include "exec/program_order.h"
#include "schedule/ir/liveness.h"
#include "schedule/ir/text.h"

namespace steptwin {
namespace {

using Kind = Instruction::Kind;
using Clock = std::vector<std::uint32_t>;  // [lane] how many of its ops are known to have ended

// Decides the waits: which earlier units the lane of each unit waits for.
class WaitPlan {
 public:
  explicit WaitPlan(const ProgramOrder& order)
      : order_(order), lanes_(order.lanes()), clocks_(lanes_, Clock(lanes_)), host_(lanes_), after_(order.ops()), waits_(order.ops()) {
    for (std::uint32_t first = 0; first < order.ops();) {
      const std::uint32_t last = order.last_of_unit(first);
      if (order.is_host_wait(first)) {
        learn_from(order.node(first).sequence, host_);
      } else {
        plan_unit(first, last);
      }
      first = last + 1;
    }
  }

  // Ops (last of their units) that the unit starting at `first` waits for, by lane.
  const std::vector<std::uint32_t>& waits(std::uint32_t first) const { return waits_[first]; }

 private:
  static void join(Clock& into, const Clock& from) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
  }
  // Whoever waits for `op` knows what was known when its unit ended.
  void learn_from(std::uint32_t op, Clock& into) const {
    if (!order_.is_host_wait(op)) join(into, after_[order_.last_of_unit(op)]);
  }
  static bool knows(const Clock& clock, const ProgramOrder& order, std::uint32_t op) { return clock[order.lane(op)] > order.place(op); }

  void plan_unit(std::uint32_t first, std::uint32_t last) {
    Clock& clock = clocks_[order_.lane(first)];
    join(clock, host_);
    std::vector<std::uint32_t> needed = needed_by(first, last, clock);
    std::vector<std::uint32_t>& kept = waits_[first];
    for (const std::uint32_t u : needed) {
      const bool implied =
          std::any_of(needed.begin(), needed.end(), [&](std::uint32_t w) { return w != u && knows(after_[w], order_, u); });
      if (!implied) kept.push_back(u);
    }
    for (const std::uint32_t u : kept) learn_from(u, clock);
    clock[order_.lane(first)] = order_.place(last) + 1;
    after_[last] = clock;
  }

  // The latest unknown unit of every other lane.
  std::vector<std::uint32_t> needed_by(std::uint32_t first, std::uint32_t last, const Clock& clock) const {
    std::vector<std::uint32_t> latest(lanes_, Instruction::kNoEvent), needed;
    for (std::uint32_t op = first; op <= last; ++op) {
      order_.each_edge(op, [&](std::uint32_t edge) {
        if (order_.is_host_wait(edge)) return;  // issued later, so started later
        const std::uint32_t u = order_.last_of_unit(edge);
        std::uint32_t& best = latest[order_.lane(u)];
        if (u >= first || knows(clock, order_, u)) return;
        if (best == Instruction::kNoEvent || order_.place(u) > order_.place(best)) best = u;
      });
    }
    std::copy_if(latest.begin(), latest.end(), std::back_inserter(needed), [](std::uint32_t u) { return u != Instruction::kNoEvent; });
    return needed;
  }

  const ProgramOrder& order_;
  std::uint32_t lanes_;
  std::vector<Clock> clocks_;  // [lane] what its next op may count on
  Clock host_;                 // what every op issued from now on may count on
  std::vector<Clock> after_;   // [last op of a unit]
  std::vector<std::vector<std::uint32_t>> waits_;
};

class Lowering {
 public:
  Lowering(const Schedule& schedule, const ProgramTables& tables)
      : program_(schedule.programs[tables.program.value]), order_(schedule, tables), ops_(schedule.ops_of(program_)), plan_(order_) {
    list_.program = tables.program;
    list_.lanes = tables.lanes;
    number_events();
    collect_lives(schedule);
  }

  InstructionList run() {
    for (std::uint32_t first = 0; first < order_.ops();) {
      const std::uint32_t last = order_.last_of_unit(first);
      if (order_.is_host_wait(first)) {
        host_wait(first);
      } else if (ops_[first].group.valid()) {
        group(first, last);
      } else {
        single(first);
      }
      first = last + 1;
    }
    return std::move(list_);
  }

 private:
  void number_events() {
    event_of_.assign(order_.ops(), Instruction::kNoEvent);
    for (std::uint32_t op = 0; op < order_.ops(); ++op) {
      if (order_.is_host_wait(op)) need_event(order_.node(op).sequence);
      for (const std::uint32_t u : plan_.waits(op)) need_event(u);
    }
    for (std::uint32_t op = 0; op < order_.ops(); ++op) {
      if (event_of_[op] == Instruction::kNoEvent) continue;
      event_of_[op] = static_cast<std::uint32_t>(list_.event_op.size());
      list_.event_op.push_back(op);
    }
  }
  void need_event(std::uint32_t op) {
    if (!order_.is_host_wait(op)) event_of_[order_.last_of_unit(op)] = 0;
  }

  void collect_lives(const Schedule& schedule) {
    begins_.resize(order_.ops());
    ends_.resize(order_.ops());
    const std::vector<Lifetime> lives = lifetimes(schedule, program_, Repetition::First);
    for (std::uint32_t b = 0; b < lives.size(); ++b) {
      if (!lives[b].home.valid()) continue;
      begins_[lives[b].first].push_back(b);
      if (lives[b].last != Lifetime::kStays) ends_[lives[b].last].push_back(b);
    }
  }

  void put(Kind kind, std::uint32_t lane, std::uint32_t op, std::uint32_t value = 0) {
    list_.instructions.push_back({kind, static_cast<std::uint16_t>(lane), op, value});
  }
  void put_allocs(std::uint32_t op) {
    for (const std::uint32_t b : begins_[op]) put(Kind::Alloc, list_.lanes, op, b);
  }
  void put_frees(std::uint32_t op) {
    for (const std::uint32_t b : ends_[op]) put(Kind::Free, list_.lanes, op, b);
  }
  void put_waits(std::uint32_t first) {
    for (const std::uint32_t u : plan_.waits(first)) put(Kind::Wait, order_.lane(first), first, event_of_[u]);
  }
  void put_record(std::uint32_t op) {
    if (event_of_[op] != Instruction::kNoEvent) put(Kind::Record, order_.lane(op), op, event_of_[op]);
  }

  void host_wait(std::uint32_t op) {
    const std::uint32_t target = order_.node(op).sequence;
    put(Kind::Mark, list_.lanes, op);
    put(Kind::HostWait, list_.lanes, op, order_.is_host_wait(target) ? Instruction::kNoEvent : event_of_[order_.last_of_unit(target)]);
    put_frees(op);
  }

  void single(std::uint32_t op) {
    put_allocs(op);
    put(Kind::Mark, list_.lanes, op);
    put_waits(op);
    put(work_kind(ops_[op].body), order_.lane(op), op);
    put_record(op);
    put_frees(op);
  }

  void group(std::uint32_t first, std::uint32_t last) {
    for (std::uint32_t op = first; op <= last; ++op) {
      put_allocs(op);
      put(Kind::Mark, list_.lanes, op);
      put_frees(op);
    }
    put_waits(first);
    put(Kind::Group, order_.lane(first), first, last - first + 1);
    put_record(last);
  }

  static Kind work_kind(const OpBody& body) {
    if (is_collective(body)) return Kind::Collective;
    if (is_point_to_point(body)) return Kind::Message;
    return std::holds_alternative<Copy>(body) ? Kind::Copy : Kind::Launch;
  }

  const Program& program_;
  ProgramOrder order_;
  std::span<const Op> ops_;
  WaitPlan plan_;
  std::vector<std::uint32_t> event_of_;  // [op]
  std::vector<std::vector<std::uint32_t>> begins_, ends_;
  InstructionList list_;
};

std::string lane_name(const Program& program, std::uint32_t lane) {
  return lane < program.lanes.size() ? program.lanes[lane].name : "host";
}

}  // namespace

const char* name_of(Instruction::Kind kind) {
  switch (kind) {
    case Kind::Alloc: return "alloc";
    case Kind::Mark: return "mark";
    case Kind::Launch: return "launch";
    case Kind::Copy: return "copy";
    case Kind::Collective: return "collective";
    case Kind::Message: return "message";
    case Kind::Group: return "group";
    case Kind::Record: return "record";
    case Kind::Wait: return "wait";
    case Kind::HostWait: return "host_wait";
    case Kind::Free: return "free";
  }
  return "?";
}

InstructionList lower(const Schedule& schedule, const ProgramTables& tables) { return Lowering(schedule, tables).run(); }

std::string print_instructions(const Schedule& schedule, const InstructionList& list) {
  const Program& program = schedule.programs[list.program.value];
  std::string text = fmt::format("program {}: {} instructions, {} events\n", program.name, list.instructions.size(), list.event_op.size());
  for (const Instruction& i : list.instructions) {
    text += fmt::format("  {:<10} ", name_of(i.kind));
    switch (i.kind) {
      case Kind::Alloc:
      case Kind::Free: text += schedule.buffer_name(program, BufferId(i.value)); break;
      case Kind::Mark: text += std::to_string(i.op); break;
      case Kind::Record:
      case Kind::Wait: text += fmt::format("e{} (op {}) on {}", i.value, list.event_op[i.value], lane_name(program, i.lane)); break;
      case Kind::HostWait:
        text += i.value == Instruction::kNoEvent ? "nothing" : fmt::format("e{} (op {})", i.value, list.event_op[i.value]);
        break;
      case Kind::Group: text += fmt::format("{}-{} on {}", i.op, i.op + i.value - 1, lane_name(program, i.lane)); break;
      case Kind::Launch:
      case Kind::Copy:
      case Kind::Collective:
      case Kind::Message: text += print_op(schedule, OpId(program.first_op.value + i.op)); break;
    }
    text += "\n";
  }
  return text;
}

}  // namespace steptwin
