// steptwin simulate: scenario -> schedule -> verify -> simulate -> store -> card.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/dry_run.h"
#include "cli/errors.h"
#include "cli/outcome_report.h"
#include "cli/run_record.h"
#include "cli/run_report.h"
#include "cli/signals.h"
#include "cli/simulation.h"

namespace steptwin {

namespace {

struct Job {
  const Options& options;
  Session& session;
  SubjectRequest request;
  std::vector<Expectation> expectations;
};

Job read_command_line(const Options& options, Session& session) {
  Job job{options, session, {options.positionals().front(), parse_overrides(options.list("set")), options.text("machine"), {}}, {}};
  for (const std::string& text : options.list("expect")) job.expectations.push_back(parse_expectation(text, summary_keys()));
  if (options.flag("no-db") && options.given("label")) throw usage_error("--label names a stored run, --no-db stores none");
  job.request = with_text(std::move(job.request));
  if (!options.flag("dry-run")) job.request.bytes_per_op = options.text("trace") == "summary" ? kSimulatedOpBytes : kTracedOpBytes;
  return job;
}

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

// Notes and warnings are printed; errors other than a deadlock end the command (exit 3).
Verdict verify_subject(const Subject& subject, const Session& session) {
  Judgement judgement = judge(subject.schedule);
  if (judgement.verdict == Verdict::Broken) throw InputError(std::move(judgement.problems));
  for (const Diagnostic& problem : judgement.problems) session.messages.diagnostic(problem);
  return judgement.verdict;
}

void print_result(const SimulationRun& run, const Options& options, Session& session) {
  const Format format = format_of(options);
  if (format == Format::Json || format == Format::Jsonl) {
    session.out.write(run_json(run, format == Format::Json ? JsonLayout::Pretty : JsonLayout::OneLine));
  } else if (format != Format::Table) {
    print_table(session.out, rank_table(run), format, "steptwin.ranks/1");
  } else if (run.trace.outcome.status != Status::Deadlock) {
    session.out.write(run_card(run, session));
  }
}

void print_warnings_of(const SimulationRun& run, const Session& session) {
  for (const std::string& warning : run.trace.warnings) session.messages.warning(warning);
  const std::vector<Op>& ops = run.subject.schedule.ops;
  if (!run.options.guard_value && std::none_of(ops.begin(), ops.end(), [](const Op& op) { return op.guard.valid(); }))
    session.messages.warning("assume.overflow changes nothing: no op of this schedule is guarded");
  if (run.trace.outcome.status != Status::Ok || run.summary.makespan > Duration(0)) return;
  session.messages.warning(run.subject.scenario ? "every op takes 0 ns: the scenario's costs are all 0"
                                                : "every op takes 0 ns: give --machine NAME, or `time 5us` on the ops of the text");
}

void print_notes_after(const SimulationRun& run, const Session& session) {
  const std::string effort = fmt::format("{:.2f} s, {} ops", run.wall_seconds, human_count(run.summary.ops));
  if (!run.key) return session.messages.note("not stored (--no-db); " + effort);
  session.messages.note(fmt::format("run {} ({}) saved in {}; {}", run.key->id, run.key->uid, run.database, effort));
  if (run.trace.outcome.status == Status::Deadlock || run.trace.spans.empty()) return;
  session.messages.note(
      fmt::format("next: steptwin trace export {} -o {}.pftrace   (open at ui.perfetto.dev)", run.key->id, run.subject.name));
}

Exit check_expectations(const Job& job, const SimulationRun& run) {
  const NamedNumbers numbers = summary_numbers(run.summary);
  Exit result = Exit::Ok;
  for (const Expectation& expectation : job.expectations) {
    const ExpectationResult outcome = evaluate(expectation, numbers);
    const std::string value = exact_number(outcome.value).empty() ? "undefined" : exact_number(outcome.value);
    if (outcome.holds) {
      job.session.messages.note(fmt::format("expect '{}': ok ({})", expectation.text, value));
    } else {
      job.session.messages.block(fmt::format("error: expect '{}' does not hold: it is {}", expectation.text, value));
      result = Exit::CheckFailed;
    }
  }
  return result;
}

// Outcome before expectations: a run that did not fit cannot pass.
Exit judge_run(const Job& job, const SimulationRun& run, Verdict verdict) {
  switch (run.trace.outcome.status) {
    case Status::OutOfMemory: {
      if (job.options.flag("allow-oom")) {
        job.session.messages.warning(run.trace.outcome.text);
        break;
      }
      const bool scenario = run.subject.scenario.has_value();
      const std::vector<Remedy> remedies = scenario ? find_remedies(job.request, *run.subject.scenario) : std::vector<Remedy>();
      job.session.messages.block(out_of_memory_text(run.subject, run.trace, remedies));
      return Exit::OutOfMemory;
    }
    case Status::Deadlock:
      if (verdict != Verdict::Deadlock) job.session.messages.block(deadlock_text(run.trace));  // else verify has explained it
      return Exit::Deadlock;
    case Status::Ok:
      break;
    case Status::Running:
    case Status::Error:
    case Status::Interrupted:
      throw InternalError("a simulation ended as " + run.summary.status);
  }
  return check_expectations(job, run);
}

void run_and_finish(const Job& job, SimulationRun& run, const CostModel& costs, RunRecord* record) {
  const auto start = std::chrono::steady_clock::now();
  run.trace = run_simulation(run.subject, costs, run.options, job.options, job.session);
  run.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (run.trace.outcome.status == Status::Interrupted) {
    if (record != nullptr) record->interrupted();
    return;
  }
  const std::string digest = schedule_digest(run.subject.schedule);
  run.summary = summarize(run.subject.schedule, digest, run.trace, step_facts(run.subject, run.options.steps));
  if (record != nullptr) record->finish(run.subject.schedule, digest, run.trace, metrics_of(run.summary));
}

// The stored run follows what happens: finished, interrupted, or failed with the reason. Set = interrupted, with this exit code.
std::optional<Exit> simulate_and_store(const Job& job, SimulationRun& run, const CostModel& costs) {
  const StopScope stop;
  run.options.stop = &stop.flag();
  std::optional<RunRecord> record;
  if (!job.options.flag("no-db")) {
    record.emplace(database_of(job.options), run_info(run.subject, job.request, job.options, run.options, run.cost_model, job.session),
                   job.session);
    run.key = record->key();
    run.database = record->path();
  }
  try {
    run_and_finish(job, run, costs, record ? &*record : nullptr);
  } catch (const std::exception& error) {
    if (record) record->failed(error.what());
    throw;
  }
  run.options.stop = nullptr;
  if (run.trace.outcome.status != Status::Interrupted) return std::nullopt;
  job.session.messages.block(record ? fmt::format("interrupted; run {} in {} is marked so", run.key->id, run.database) : "interrupted");
  return stop.exit_code();
}

Exit simulate_subject(const Job& job, SimulationRun& run, Verdict verdict) {
  const std::unique_ptr<CostModel> costs = cost_model_of(run.subject);
  run.options = simulate_options(job.options, run.subject);
  run.cost_model = costs->name();
  if (const std::optional<Exit> interrupted = simulate_and_store(job, run, *costs)) return *interrupted;
  invariant(verdict != Verdict::Deadlock || run.trace.outcome.status == Status::Deadlock,
            "verify found a deadlock that the engine does not meet");
  print_result(run, job.options, job.session);
  job.session.out.flush();  // results before the notes that follow them
  print_warnings_of(run, job.session);
  print_notes_after(run, job.session);
  return judge_run(job, run, verdict);
}

}  // namespace

Exit run_simulate(const Options& options, Session& session) {
  const std::string started = utc_now();
  const Job job = read_command_line(options, session);
  SimulationRun run;
  run.subject = load_subject(job.request);
  run.started_utc = started;
  run.seed = options.whole("seed", 1);
  if (run.subject.scenario) {
    for (const Diagnostic& note : run.subject.scenario->notes) session.messages.diagnostic(note);
  }
  const Verdict verdict = options.flag("no-verify") ? Verdict::Sound : verify_subject(run.subject, session);
  if (options.flag("dry-run")) {
    print_dry_run(run.subject, options, session);
    return verdict == Verdict::Deadlock ? Exit::Deadlock : Exit::Ok;
  }
  return simulate_subject(job, run, verdict);
}

}  // namespace steptwin
