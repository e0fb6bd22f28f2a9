// Device memory of a schedule without simulating it: the `allocated` curve is a pure function of each program (liveness.h), so its
// peak is the exact peak of a run, and a lower bound of what the device needs.
#pragma once

#include <array>
#include <vector>

#include "cli/table.h"
#include "schedule/ir/schedule.h"
#include "schedule/scenario.h"

namespace steptwin {

struct ProgramPeak {
  ProgramId program;
  Bytes bytes;
  OpId op;                                       // where it is reached first; none = the resident buffers alone
  std::array<Bytes, kCategories> by_category{};  // at that op; sums to bytes
};
ProgramPeak device_peak(const Schedule& schedule, ProgramId program);
// The program with the largest peak; a schedule without programs gives 0 bytes.
ProgramPeak largest_device_peak(const Schedule& schedule);

// Per stage, closed forms beside the derived peak. Closed forms (specs/memory.md 1, 2.1, 2.3), bytes:
//   parameters n*compute, gradients n*gradient, optimizer n*3*master (Adam: master copy and two moments), and for the activations
//   min(m, p-r) micro-batches in flight (gpipe: m) times the layers' saved bytes (full recompute: their inputs, b*s*h, plus one layer).
Table memory_table(const Scenario& scenario, const Schedule& schedule);

}  // namespace steptwin
