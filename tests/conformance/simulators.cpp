// The rows of the simulator: both agendas, with the durations that ops state.
#include "sim/cost/stated.h"
#include "sim/simulate.h"
#include "tests/conformance/backends.h"

namespace steptwin::test {
namespace {

ExecutionResult simulated(EngineChoice engine, const Schedule& schedule, const ExecuteOptions& options) {
  SimulateOptions simulation;
  simulation.engine = engine;
  simulation.steps = options.warm_up + options.steps;
  simulation.stop = options.stop;
  ExecutionResult result;
  result.trace = simulate(schedule, StatedCosts(), nullptr, simulation);
  std::erase_if(result.trace.spans, [&](const Span& span) { return span.step < options.warm_up; });
  for (Span& span : result.trace.spans) span.step -= options.warm_up;
  return result;
}

BackendUnderTest simulator(const char* name, EngineChoice engine) {
  return {name,
          BackendUnderTest::Kind::Simulator,
          [engine](const Schedule& s, const ExecuteOptions& o) { return simulated(engine, s, o); },
          {}};
}

}  // namespace

std::vector<BackendUnderTest> simulators() { return {simulator("replay", EngineChoice::Replay), simulator("event", EngineChoice::Event)}; }

}  // namespace steptwin::test
