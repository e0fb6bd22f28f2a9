#include "sim/cost/stated.h"

#include <algorithm>

namespace steptwin {
namespace {

Cost stated(const Op& op) { return {std::max(op.given, Duration(0)), Provenance::Given}; }

}  // namespace

Cost StatedCosts::compute(const Schedule&, const Program&, const Op& op) const { return stated(op); }
Cost StatedCosts::copy(const Schedule& schedule, const Program&, OpId op) const { return stated(schedule.ops[op.value]); }
Cost StatedCosts::communicate(const Schedule&, const Program&, const Op& op, const CommShape&) const { return stated(op); }

}  // namespace steptwin
