#include "cli/simulation.h"

#include <fmt/core.h>

#include <utility>

#include "cli/errors.h"
#include "cli/progress.h"
#include "sim/cost/cost_models.h"

namespace steptwin {

namespace {

constexpr std::int64_t kMostSteps = 10'000;  // as run.steps of a scenario

ProgressStyle progress_style(const Options& words, const Session& session) {
  if (words.flag("no-progress") || session.messages.verbosity() == Verbosity::Quiet) return ProgressStyle::None;
  return session.terminal.err_tty ? ProgressStyle::Redrawn : ProgressStyle::Plain;
}

EngineChoice engine_choice(const std::string& word) {
  if (word == "replay") return EngineChoice::Replay;
  return word == "event" ? EngineChoice::Event : EngineChoice::Auto;
}

FoldChoice fold_choice(const std::string& word) {
  if (word == "on") return FoldChoice::On;
  return word == "off" ? FoldChoice::Off : FoldChoice::Auto;
}

}  // namespace

std::unique_ptr<CostModel> cost_model_of(const Subject& subject) {
  if (subject.scenario && subject.scenario->given) return given_costs(*subject.scenario->given, subject.schedule);
  if (subject.machine) return subject.machine->measured ? measured_costs(*subject.machine) : analytic_costs(*subject.machine);
  return stated_costs();
}

std::uint32_t repetitions(const Options& options, const char* name, std::int64_t fallback) {
  const std::int64_t number = options.whole(name, fallback);
  if (number > kMostSteps) throw usage_error(fmt::format("--{} {}: at most {}", name, number, kMostSteps));
  return static_cast<std::uint32_t>(number);
}

SimulateOptions simulate_options(const Options& options, const Subject& subject) {
  SimulateOptions result;
  result.engine = engine_choice(options.text("engine"));
  result.fold = fold_choice(options.text("fold"));
  result.detail = options.text("trace") == "summary" ? TraceDetail::Summary : TraceDetail::Full;
  result.steps = repetitions(options, "steps", subject.scenario ? subject.scenario->steps : 1);
  result.guard_value = !(subject.scenario && subject.scenario->assume_overflow);
  return result;
}

Trace run_simulation(const Subject& subject, const CostModel& costs, SimulateOptions options, const Options& words,
                     const Session& session) {
  Progress progress(progress_style(words, session), "simulating", [&session](const std::string& text) { session.messages.raw(text); });
  options.progress = [&progress](std::uint64_t done, std::uint64_t total, SimTime now) { progress.update(done, total, now); };
  Trace trace = simulate(subject.schedule, costs, subject.machine ? &*subject.machine : nullptr, options);
  progress.finish();
  return trace;
}

}  // namespace steptwin
