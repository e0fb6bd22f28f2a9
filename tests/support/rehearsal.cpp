#include "tests/support/rehearsal.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "schedule/batching.h"
#include "schedule/compile.h"
#include "schedule/orders/orders.h"
#include "sim/cost/cost_models.h"

namespace steptwin::test {
namespace {

std::unique_ptr<CostModel> costs_of(const Scenario& scenario, const Schedule& schedule) {
  if (scenario.given) return given_costs(*scenario.given, schedule);
  return scenario.machine->measured ? measured_costs(*scenario.machine) : analytic_costs(*scenario.machine);
}

double us(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

}  // namespace

Rehearsal rehearse(const Scenario& scenario, const SimulateOptions& options) {
  Rehearsal r{scenario, compile(scenario), {}, {}};
  SimulateOptions own = options;
  own.guard_value = !scenario.assume_overflow;
  r.trace = simulate(r.schedule, *costs_of(scenario, r.schedule), scenario.machine ? &*scenario.machine : nullptr, own);
  StepFacts facts;
  facts.steps = own.steps;
  const OrderEntry* order = find_order(scenario.order);
  if (order != nullptr && !batch_on_every_rank(scenario)) facts.bubble_theory = order->bubble_rate(order_options(scenario));
  r.summary = summarize(r.schedule, schedule_digest(r.schedule), r.trace, facts);
  return r;
}

Rehearsal rehearse(const std::string& text, const std::vector<Override>& overrides, const SimulateOptions& options) {
  return rehearse(parse_scenario(text, "test.json", overrides), options);
}

std::string scenario_text(const GivenPipeline& g) {
  return fmt::format(
      R"({{"format": 1, "name": "given",
 "model": {{"family": "gpt", "layers": {}, "hidden": 64, "heads": 4, "vocabulary": 128, "positions": 32, "tied": {}}},
 "mesh": {{"pp": {}, "dp": {}}},
 "batch": {{"micro_batches": {}, "micro_batch_size": 2, "sequence_length": 32}},
 "schedule": {{"order": "{}", "p2p": "{}"}}, "recompute": {{"mode": "{}"}},
 "cost": {{"model": "given", "forward_us": {:.3f}, "input_grad_us": {:.3f}, "weight_grad_us": {:.3f}, "p2p_us": {:.3f}, "optimizer_us": {:.3f}}}}})",
      g.p * g.layers_per_stage, g.tied, g.p, g.dp, g.m, g.order, g.p2p, g.recompute, us(g.forward_ns), us(g.input_grad_ns),
      us(g.weight_grad_ns), us(g.hop_ns), us(g.optimizer_ns));
}

Rehearsal rehearse(const GivenPipeline& pipeline, const SimulateOptions& options) { return rehearse(scenario_text(pipeline), {}, options); }

std::int64_t step_ns(const GivenPipeline& pipeline) {
  const Scenario scenario = parse_scenario(scenario_text(pipeline), "test.json");
  const Schedule schedule = compile(scenario);
  SimulateOptions options;
  options.detail = TraceDetail::Summary;
  return ns(simulate(schedule, *costs_of(scenario, schedule), nullptr, options).step_time);
}

std::vector<std::vector<std::string>> csv_rows(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::vector<std::string>> rows;
  std::string line;
  for (bool header = true; std::getline(file, line); header = false) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (header || line.empty() || line.front() == '#') continue;
    std::vector<std::string> cells;
    std::istringstream fields(line);
    for (std::string cell; std::getline(fields, cell, ',');) cells.push_back(cell);
    rows.push_back(std::move(cells));
  }
  return rows;
}

}  // namespace steptwin::test
