// The work of the fake compute ops (fake_ops.cpp), on host memory; host_ops.cpp and cuda_ops.cpp bring it to where the operands lie.
#pragma once

#include <span>

#include "exec/ops/compute.h"

namespace steptwin {

void fake_compute(const Schedule& schedule, const Program& program, OpId op, std::span<const BoundAccess> operands);

}  // namespace steptwin
