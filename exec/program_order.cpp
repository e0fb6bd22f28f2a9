#include "exec/program_order.h"

namespace steptwin {

ProgramOrder::ProgramOrder(const Schedule& schedule, const ProgramTables& tables) : tables_(tables) {
  const Program& program = schedule.programs[tables.program.value];
  last_.resize(program.op_count);
  place_.resize(program.op_count);
  for (std::uint32_t lane = 0; lane < tables.lanes; ++lane) {
    for (std::uint32_t i = tables.lane_begin[lane]; i < tables.lane_begin[lane + 1]; ++i)
      place_[tables.lane_ops[i]] = i - tables.lane_begin[lane];
  }
  const auto ops = schedule.ops_of(program);
  for (std::uint32_t op = program.op_count; op-- > 0;) {
    const bool joins_next = op + 1 < program.op_count && ops[op].group.valid() && ops[op].group == ops[op + 1].group;
    last_[op] = joins_next ? last_[op + 1] : op;
  }
}

}  // namespace steptwin
