// How well a calibrated machine predicts: calibrated on one scenario, step time and op times predicted for three that calibration has not
// seen (other micro-batch count, other order, other stage split), one thread (interp). Calibration and executions alternate, round by
// round; a round's figure is the median of its steps, minima over the rounds are compared. Nothing of the executions reaches the tables.
// Ops: those longer than 50 us that are neither copies nor waits; the rest is reported apart.
// Wall times of a busy machine are its own and its neighbours': when the thread had less than 95 % of a processor, all is done again on the
// thread's own clock (processor time), and both results are printed. Usage: prediction_bench [rounds]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "exec/calibrate/calibrate.h"
#include "exec/module.h"
#include "schedule/compile.h"
#include "schedule/ir/text.h"
#include "schedule/json/json_reader.h"
#include "schedule/scenario.h"
#include "sim/cost/cost_models.h"
#include "sim/simulate.h"

using namespace steptwin;

namespace {

constexpr std::uint32_t kSteps = 3;
constexpr double kTarget = 0.10, kShortest = 50e3;  // ns
const std::string kScenario = SOURCE_DIR "/scenarios/gpt2_pp4_small.json";

std::int64_t median(std::vector<std::int64_t> values) { return quantile(std::move(values), 0.5); }

using OpKey = std::pair<std::uint32_t, std::uint32_t>;  // rank, op id

// One execution: its steps' lengths (distance of ends over all ranks) and every op's durations.
struct Execution {
  std::int64_t step = 0;              // median
  std::map<OpKey, std::int64_t> ops;  // median over steps
};

Execution execution_of(const Trace& trace) {
  std::vector<std::int64_t> ends(kSteps, 0), steps;
  std::int64_t first = INT64_MAX;
  std::map<OpKey, std::vector<std::int64_t>> ops;
  for (const Span& span : trace.spans) {
    ends[span.step] = std::max(ends[span.step], ns(span.end));
    first = std::min(first, ns(span.start));
    ops[{span.rank.value, span.op.value}].push_back(ns(span.end - span.start));
  }
  for (std::uint32_t s = 1; s < kSteps; ++s) steps.push_back(ends[s] - ends[s - 1]);
  Execution run;
  run.step = median(std::move(steps));
  for (auto& [key, times] : ops) run.ops[key] = median(std::move(times));
  return run;
}

struct Case {
  std::string name;
  Scenario scenario;
  Schedule schedule;
  std::vector<Execution> rounds;
};

Case make_case(const std::string& name, const std::vector<Override>& overrides) {
  Case c{name, load_scenario(kScenario, overrides), {}, {}};
  c.schedule = compile(c.scenario);
  return c;
}

struct OpErrors {
  std::vector<std::pair<double, OpId>> compared;  // ascending
  std::size_t apart = 0;
  std::int64_t apart_predicted = 0, apart_measured = 0;
};

OpErrors op_errors(const Case& c, const Trace& predicted) {
  OpErrors errors;
  for (const Span& span : predicted.spans) {
    if (span.step == 0) continue;  // the second of two: steady state
    std::int64_t measured = INT64_MAX;
    for (const Execution& round : c.rounds) measured = std::min(measured, round.ops.at({span.rank.value, span.op.value}));
    const std::int64_t time = ns(span.end - span.start);
    const OpBody& body = c.schedule.ops[span.op.value].body;
    const bool apart =
        static_cast<double>(measured) <= kShortest || std::holds_alternative<Copy>(body) || std::holds_alternative<HostWait>(body);
    if (apart) {
      ++errors.apart, errors.apart_predicted += time, errors.apart_measured += measured;
    } else {
      errors.compared.emplace_back(std::fabs(static_cast<double>(time - measured) / static_cast<double>(measured)), span.op);
    }
  }
  std::sort(errors.compared.begin(), errors.compared.end());
  return errors;
}

const char* verdict(double error, double spread) {
  if (std::fabs(error) <= kTarget) return "ok";
  return std::fabs(error) <= spread ? "within the spread" : "MISS";
}

void report(const Case& c, const Machine& machine) {
  SimulateOptions options;
  options.steps = 2;
  const Trace predicted = simulate(c.schedule, *measured_costs(machine), &machine, options);
  std::int64_t least = INT64_MAX, most = 0;
  for (const Execution& round : c.rounds) least = std::min(least, round.step), most = std::max(most, round.step);
  const double spread = static_cast<double>(most - least) / static_cast<double>(least);
  const double error = static_cast<double>(ns(predicted.step_time) - least) / static_cast<double>(least);
  fmt::print("{:<34} predicted {:8.2f} ms  measured {:8.2f} ms  error {:+6.2f} %  spread of executions {:5.1f} %  {}\n", c.name,
             static_cast<double>(ns(predicted.step_time)) / 1e6, static_cast<double>(least) / 1e6, 100 * error, 100 * spread,
             verdict(error, spread));
  const OpErrors errors = op_errors(c, predicted);
  const double middle = errors.compared.empty() ? 0 : errors.compared[errors.compared.size() / 2].first;
  fmt::print("{:<34} {} ops over 50 us: median |error| {:.2f} %  {}\n", "", errors.compared.size(), 100 * middle, verdict(middle, spread));
  if (!errors.compared.empty())
    fmt::print("{:<34} largest {:.1f} %: {}\n", "", 100 * errors.compared.back().first,
               print_op(c.schedule, errors.compared.back().second));
  fmt::print("{:<34} apart: {} short ops, copies, waits: {:.2f} ms predicted, {:.2f} ms measured\n", "", errors.apart,
             static_cast<double>(errors.apart_predicted) / 1e6, static_cast<double>(errors.apart_measured) / 1e6);
  const std::uint64_t measured = predicted.provenance[static_cast<std::size_t>(Provenance::Measured)];
  for (const std::string& warning : predicted.warnings) fmt::print("{:<34} {}\n", "", warning);
  fmt::print("{:<34} {} ops have a row of their own in the tables\n", "", measured);
}

// Calibrates and executes in turn on one clock, prints the comparison; the share of a processor that the thread had.
double series(Backend& backend, StampClock clock, int rounds) {
  const std::string text = read_text_file(SOURCE_DIR "/scenarios/text/rehearsal.txt");
  ExecuteOptions options;
  options.text.assign(text.begin(), text.end());
  options.clock = clock;
  options.warm_up = 1;
  options.steps = kSteps;
  const Case base = make_case("calibrated: 1f1b, m 8, pp 4", {});
  std::vector<Case> cases;
  cases.push_back(make_case("1f1b, m 12, pp 4", {{"batch.micro_batches", "12"}}));
  cases.push_back(make_case("gpipe, m 8, pp 4", {{"schedule.order", "gpipe"}}));
  cases.push_back(make_case("1f1b, m 8, pp 2", {{"mesh.pp", "2"}}));
  fmt::print("{}: calibrated on gpt2_pp4_small ({}), {} rounds of 1 + {} steps, interp, alternating with the executions\n",
             clock == StampClock::Wall ? "wall time" : "processor time", base.name, rounds, kSteps);
  Calibration calibration(load_machine(machine_preset_path("cpu")), options, {{base.scenario.name, base.scenario.sha256, base.schedule}});
  for (int round = 0; round < rounds; ++round) {
    if (calibration.run_round(backend).status != Status::Ok) std::exit(1);
    for (Case& c : cases) c.rounds.push_back(execution_of(backend.run(c.schedule, options).trace));
  }
  const Machine machine = calibration.machine(backend.name());
  const double share = calibration.processor_share().value_or(1);
  fmt::print("turnaround of the thread {:.1f} us; the thread had {:.0f} % of a processor\n",
             static_cast<double>(ns(machine.host.turnaround)) / 1e3, 100 * share);
  for (const Case& c : cases) report(c, machine);
  return share;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  const std::unique_ptr<Backend> backend = load_cpu_backend();
  if (series(*backend, StampClock::Wall, rounds) >= Calibration::kBusy) return 0;
  fmt::print("the machine was busy; the same on the thread's own clock:\n");
  series(*backend, StampClock::ThreadTime, rounds);
  return 0;
}
