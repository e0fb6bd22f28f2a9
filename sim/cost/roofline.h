// Roofline (specs/cost_models.md 7): a kernel takes t = max(flops / (peak e(flops)), bytes / (bandwidth e(bytes))); launch cost is the
// host's, see CostModel::launch. All results in seconds. Pure; + - * / only. Throws InputError when the machine lacks a needed rate.
#pragma once

#include "schedule/ir/op.h"
#include "schedule/machine/machine.h"

namespace steptwin {

// MatMul and Attention run on the matrix units at the peak of their data type (a type without one: on the vector units); Attention
// at attention_efficiency, or at matrix_efficiency where a profile states none. Stream kernels run on the vector units.
double kernel_seconds(const Device& device, const Kernel& kernel);
double work_seconds(const Device& device, const Work& work);  // the kernels one after the other

// A copy inside device memory reads and writes it.
double device_copy_seconds(const Device& device, Bytes read, Bytes written);

}  // namespace steptwin
