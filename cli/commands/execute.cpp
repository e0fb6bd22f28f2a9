// steptwin execute: scenario -> schedule -> verify -> simulate -> execute -> both stored -> card. Of several processes the first does all
// this, the others execute.
#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/backend_options.h"
#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/errors.h"
#include "cli/execution_report.h"
#include "cli/free_memory.h"
#include "cli/outcome_report.h"
#include "cli/processes.h"
#include "cli/run_record.h"
#include "cli/signals.h"
#include "cli/simulation.h"
#include "schedule/base/median.h"
#include "traces/check_trace.h"

namespace steptwin {

namespace {

ExecuteOptions execute_options(const Options& options) {
  ExecuteOptions result = backend_options(options);
  result.warm_up = repetitions(options, "warmup", 0);
  result.steps = repetitions(options, "steps", 1);
  result.keep_gradients = options.flag("check");
  result.save = options.text("save");
  result.load = options.text("load");
  return result;
}

struct Job {
  const Options& options;
  Session& session;
  SubjectRequest request;
  ExecuteOptions execute;
  std::unique_ptr<Backend> backend;
  Launch launch;
  std::unique_ptr<ProcessGroup> group;  // of several processes
  Verdict verdict = Verdict::Sound;
};

// The prediction first: what does not fit or hangs is not started.
std::optional<Exit> predict(const Job& job, ExecutionRun& run) {
  SimulationRun& sim = run.prediction;
  const std::unique_ptr<CostModel> costs = cost_model_of(sim.subject);
  sim.options = simulate_options(job.options, sim.subject);
  const bool first_only = job.execute.warm_up + job.execute.steps == 1 && job.execute.load.empty();
  sim.options.steps = first_only ? 1 : 2;  // the last of two is the steady state
  sim.cost_model = costs->name();
  std::optional<RunRecord> record;
  if (!job.options.flag("no-db")) {
    RunInfo info = run_info(sim.subject, job.request, job.options, sim.options, sim.cost_model, job.session);
    info.label.clear();  // names the execution
    record.emplace(database_of(job.options), info, job.session);
    sim.key = record->key();
  }
  try {
    sim.trace = run_simulation(sim.subject, *costs, sim.options, job.options, job.session);
    for (const std::string& warning : sim.trace.warnings) job.session.messages.warning(warning);
    const std::string digest = schedule_digest(sim.subject.schedule);
    sim.summary = summarize(sim.subject.schedule, digest, sim.trace, step_facts(sim.subject, sim.options.steps));
    if (record) record->finish(sim.subject.schedule, digest, sim.trace, metrics_of(sim.summary));
  } catch (const std::exception& error) {
    if (record) record->failed(error.what());
    throw;
  }
  if (sim.trace.outcome.status == Status::OutOfMemory) {
    job.session.messages.block(out_of_memory_text(sim.subject, sim.trace, {}));
    return Exit::OutOfMemory;
  }
  if (sim.trace.outcome.status == Status::Deadlock && !job.options.flag("no-verify")) {
    if (job.verdict != Verdict::Deadlock) job.session.messages.block(deadlock_text(sim.trace));  // else verify has explained it
    return Exit::Deadlock;
  }
  return std::nullopt;
}

RunInfo execution_info(const Job& job, const ExecutionRun& run) {
  RunInfo info = run_info(run.prediction.subject, job.request, job.options, run.prediction.options, "", job.session);
  info.kind = "exec";
  info.backend = run.backend;
  info.steps = job.execute.steps;
  if (run.prediction.key) info.sim_of_uid = run.prediction.key->uid;
  nlohmann::ordered_json machine;
  machine["mode"] = run.mode;
  if (run.backend == "cpu") machine["compute_slots"] = job.execute.compute_slots;
  if (job.execute.partitions > 0) machine["partitions"] = job.execute.partitions;
  machine["environment"] = nlohmann::ordered_json::parse(job.backend->environment(), nullptr, false);
  info.machine_json = machine.dump();
  return info;
}

std::vector<Metric> execution_metrics(const ExecutionRun& run) {
  std::vector<Metric> metrics = metrics_of(run.summary);
  for (std::size_t i = 0; i < run.result.losses.size(); ++i)
    metrics.push_back({fmt::format("loss_step_{:05}", i + 1), "1", run.result.losses[i], {}});
  for (std::size_t i = 0; i < run.step_times.size(); ++i)
    metrics.push_back({fmt::format("step_time_{:05}_ns", i + 1), "ns", static_cast<double>(ns(run.step_times[i])), {}});
  metrics.push_back({"step_time_median_ns", "ns", static_cast<double>(ns(median(run.step_times))), {}});
  if (!run.result.processes.empty())
    metrics.push_back({"clock_uncertainty_ns", "ns", static_cast<double>(clock_uncertainty(run.result.processes)), {}});
  for (const RunFact& fact : run.result.facts) metrics.push_back({fact.name, fact.unit, fact.value, {}});
  metrics.push_back({"workspace_peak_bytes", "B", static_cast<double>(run.result.workspace_peak), {}});
  return metrics;
}

void execute_and_finish(const Job& job, ExecutionRun& run, RunRecord* record) {
  const Schedule& schedule = run.prediction.subject.schedule;
  run.result = job.backend->run(schedule, job.execute);
  if (run.result.trace.outcome.status == Status::Interrupted) {
    if (record != nullptr) record->interrupted();
    return;
  }
  run.step_times = measured_steps(run.result.trace, run.steps);
  run.summary =
      summarize(schedule, run.prediction.summary.schedule_digest, run.result.trace, step_facts(run.prediction.subject, run.steps));
  if (record != nullptr) record->finish(schedule, run.prediction.summary.schedule_digest, run.result.trace, execution_metrics(run));
}

// Set: interrupted, with this exit code.
std::optional<Exit> execute_and_store(Job& job, ExecutionRun& run) {
  const StopScope stop;
  job.execute.stop = &stop.flag();
  std::optional<RunRecord> record;
  if (!job.options.flag("no-db")) {
    record.emplace(database_of(job.options), execution_info(job, run), job.session);
    run.key = record->key();
  }
  try {
    execute_and_finish(job, run, record ? &*record : nullptr);
  } catch (const std::exception& error) {
    if (record) record->failed(error.what());
    throw;
  }
  job.execute.stop = nullptr;
  if (run.result.trace.outcome.status != Status::Interrupted) return std::nullopt;
  job.session.messages.block(run.key ? fmt::format("interrupted; run {} is marked so", run.key->id) : "interrupted");
  return stop.exit_code();
}

// Of a run that computes or sums gradients in 16 bits the plain model runs twice: in that type and in fp32.
GradientCheck check_run(const Job& job, const ExecutionRun& run) {
  const Subject& subject = run.prediction.subject;
  const auto plain = [&] { return job.backend->run_plain(subject.schedule, job.execute); };
  const auto plain_in = [&](DType type) {
    SubjectRequest other = job.request;
    other.overrides.push_back({"precision.compute", name_of(type)});
    other.overrides.push_back({"precision.gradient", "fp32"});
    return job.backend->run_plain(load_subject(other).schedule, job.execute);
  };
  const DType compute = subject.scenario ? subject.scenario->compute : DType::Fp32;
  const DType reduce = subject.scenario ? subject.scenario->reduce : compute;
  if (compute != DType::Fp32) return check_against_plain_16bit(subject.schedule, run.result, plain(), plain_in(DType::Fp32));
  if (reduce != DType::Fp32) return check_against_plain_16bit(subject.schedule, run.result, plain_in(reduce), plain());
  return check_against_plain(subject.schedule, run.result, plain(), run.backend == "cpu" ? PlainDevice::Same : PlainDevice::Other);
}

void print_result(const ExecutionRun& run, const Options& options, Session& session) {
  const Format format = format_of(options);
  if (format == Format::Json || format == Format::Jsonl) {
    session.out.write(execution_json(run, format == Format::Json ? JsonLayout::Pretty : JsonLayout::OneLine));
  } else {
    session.out.write(execution_card(run, session));
  }
  session.out.flush();
}

// What was measured must obey the schedule, whatever the backend.
bool obeys_schedule(const ExecutionRun& run, const Session& session) {
  const std::vector<Diagnostic> problems = check_trace(run.prediction.subject.schedule, run.result.trace, run.steps);
  for (const Diagnostic& problem : problems) session.messages.diagnostic(problem);
  return problems.empty();
}

Exit judge_run(const ExecutionRun& run, const Session& session) {
  const Outcome& outcome = run.result.trace.outcome;
  if (outcome.status == Status::Deadlock) {
    session.messages.block(deadlock_text(run.result.trace));
    return Exit::Deadlock;
  }
  if (!obeys_schedule(run, session)) {
    session.messages.block("error: the measured order does not obey the schedule: a fault of this backend");
    return Exit::Bug;
  }
  for (std::size_t i = 0; i < run.result.losses.size(); ++i) {
    if (std::isfinite(run.result.losses[i])) continue;
    session.messages.block(fmt::format(
        "error: the loss of step {} is {}: numbers have left the range of their type, in this step or in the update before it\n"
        "  help: --set precision.compute=fp32 has the widest range; another --seed or --data tells whether it is the data",
        i + 1, std::isnan(run.result.losses[i]) ? "not a number" : "infinite"));
    return Exit::CheckFailed;
  }
  if (run.check && !run.check->holds) {
    session.messages.block("error: " + run.check->problem);
    return Exit::CheckFailed;
  }
  return Exit::Ok;
}

void refuse_for_save(const Subject& subject, const Options& options) {
  if (!subject.scenario || subject.scenario->task != RunTask::Save) return;
  if (options.flag("check"))
    throw usage_error("--check compares gradients, and a checkpoint save has none", "leave it out, or --set run.task=step");
  if (options.given("save"))
    throw usage_error("--save writes the state behind a training step; run.task \"save\" ends in host memory, without files",
                      "leave it out, or --set run.task=step");
}

Subject sound_subject(Job& job) {
  Subject subject = load_subject(job.request);
  refuse_for_save(subject, job.options);
  Judgement judgement = judge(subject.schedule);
  if (judgement.verdict == Verdict::Broken && (!job.options.flag("no-verify") || !is_structurally_sound(subject.schedule)))
    throw InputError(std::move(judgement.problems));
  for (const Diagnostic& problem : judgement.problems)
    if (job.launch.rank == 0) job.session.messages.diagnostic(problem);
  job.verdict = judgement.verdict;
  return subject;
}

// Everything behind the start: of several processes, what process 0 does.
Exit predict_and_execute(Job& job, ExecutionRun& run) {
  const Options& options = job.options;
  if (const auto& machine = run.prediction.subject.machine; machine && machine->measured && machine->measured->mode != run.mode)
    job.session.messages.warning(
        fmt::format("the machine profile was calibrated for --mode {}, this is {}", machine->measured->mode, run.mode));
  if (const std::optional<Exit> stopped = predict(job, run)) return *stopped;
  if (backend_of(options) == BackendKind::Cpu)
    require_execution_memory(run.prediction.subject.schedule, run.steps, job.group ? std::optional(RankId(job.launch.rank)) : std::nullopt);
  if (job.group) tell_to_start(*job.group);
  if (const std::optional<Exit> interrupted = execute_and_store(job, run)) return *interrupted;
  if (options.flag("check") && run.result.trace.outcome.status == Status::Ok) run.check = check_run(job, run);
  print_result(run, options, job.session);
  if (run.key)
    job.session.messages.note(fmt::format("run {} (prediction {}) saved in {}\nnext: steptwin compare {} {}", run.key->id,
                                          run.prediction.key->id, database_of(options), run.prediction.key->id, run.key->id));
  return judge_run(run, job.session);
}

Exit execute_as_one_of_several(Job& job, ExecutionRun& run) {
  const Schedule& schedule = run.prediction.subject.schedule;
  job.group = join_processes(job.launch, *job.backend, schedule_digest(schedule), job.execute);
  job.execute.group = job.group.get();
  try {
    if (!job.group->leads()) return follow(*job.group, *job.backend, schedule, job.execute);
    const Exit exit = predict_and_execute(job, run);
    tell_exit(*job.group, exit);
    return exit;
  } catch (...) {
    job.group->fail(std::current_exception());
    throw;
  }
}

void check_usage(const Options& options, const Launch& launch) {
  if (options.flag("no-db") && options.given("label")) throw usage_error("--label names a stored run, --no-db stores none");
  if (options.flag("check") && options.given("load"))
    throw usage_error("--check compares with a plain model that starts from the seed, not from a checkpoint",
                      "leave --check or --load out");
  refuse_for_processes(options, launch);
}

}  // namespace

Exit run_execute(const Options& options, Session& session) {
  const Launch launch = launch_of_process();
  check_usage(options, launch);
  SubjectRequest request{options.positionals().front(), parse_overrides(options.list("set")), options.text("machine"), {}};
  Job job{options, session, std::move(request), {}, nullptr, launch, nullptr};
  job.request = with_text(std::move(job.request));
  ExecutionRun run;
  run.prediction.subject = sound_subject(job);
  require_one_process_per_rank(job.launch, static_cast<std::uint32_t>(run.prediction.subject.schedule.mesh.size()));
  job.execute = execute_options(options);
  job.backend = load_backend(backend_of(options));
  run.name = run.prediction.subject.name;
  run.backend = job.backend->name();
  run.mode = name_of(job.execute.mode);
  run.warm_up = job.execute.warm_up, run.steps = job.execute.steps;
  return job.launch.alone() ? predict_and_execute(job, run) : execute_as_one_of_several(job, run);
}

}  // namespace steptwin
