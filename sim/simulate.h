// The simulator: runs a schedule on a machine model and gives its trace. Deterministic: same input, same trace digest.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "schedule/ir/schedule.h"
#include "sim/cost/cost_model.h"
#include "traces/trace.h"

namespace steptwin {

enum class EngineChoice : std::uint8_t { Auto, Replay, Event };
enum class FoldChoice : std::uint8_t { Auto, On, Off };
enum class TraceDetail : std::uint8_t { Full, Summary };

struct SimulateOptions {
  EngineChoice engine = EngineChoice::Auto;
  FoldChoice fold = FoldChoice::Auto;
  TraceDetail detail = TraceDetail::Full;
  std::uint32_t steps = 1;
  bool guard_value = true;                            // value of guards ("ok"): true = no overflow
  const std::atomic<bool>* stop = nullptr;            // set by a signal handler: the run ends with Status::Interrupted
  std::function<void(std::uint64_t done, std::uint64_t total, SimTime now)> progress;  // called every ~100k ops
};


// Never throws for outcomes: out of memory and deadlock are in Trace::outcome. machine may be null (given costs: no nodes, no capacity).
Trace simulate(const Schedule& schedule, const CostModel& costs, const Machine* machine, const SimulateOptions& options = {});

}  // namespace steptwin
