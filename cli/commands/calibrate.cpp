// steptwin calibrate: runs scenarios (and a sweep of sizes) for real, writes what their ops took into a machine profile.
#include "exec/calibrate/calibrate.h"

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/backend_options.h"
#include "cli/calibration_report.h"
#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/errors.h"
#include "cli/file_system.h"
#include "cli/free_memory.h"
#include "cli/processes.h"
#include "cli/signals.h"
#include "cli/simulation.h"
#include "cli/subject.h"
#include "exec/calibrate/sweep.h"
#include "exec/module.h"
#include "schedule/batching.h"
#include "schedule/machine/profile_reader.h"
#include "sim/cost/cost_models.h"
#include "sim/simulate.h"
#include "steptwin_version.h"

namespace steptwin {

namespace {

constexpr std::int64_t kRounds = 5, kSteps = 3, kWarmUp = 1;
constexpr const char* kBase = "cpu";

struct Job {
  const Options& options;
  Session& session;
  std::vector<Subject> subjects;  // the scenarios as given
  std::vector<CalibrationSubject> work;
};

ExecuteOptions execute_options(const Options& options) {
  ExecuteOptions result = backend_options(options);
  if (options.text("clock") == "thread" && result.mode != ExecutionMode::Interp)
    throw usage_error("--clock thread: only one thread that does everything has a time of its own", "--backend cpu --mode interp");
  result.clock = options.text("clock") == "thread" ? StampClock::ThreadTime : StampClock::Wall;
  result.warm_up = repetitions(options, "warmup", kWarmUp);
  result.steps = repetitions(options, "steps", kSteps);
  return result;
}

Subject sound_subject(const SubjectRequest& request, const Session& session) {
  Subject subject = load_subject(request);
  Judgement judgement = judge(subject.schedule);
  if (judgement.verdict != Verdict::Sound) throw InputError(std::move(judgement.problems));
  for (const Diagnostic& problem : judgement.problems) session.messages.diagnostic(problem);
  return subject;
}

CalibrationSubject work_of(const Subject& subject, const std::string& variant = {}) {
  return {subject.name + variant, subject.scenario ? subject.scenario->sha256 : subject.text_sha256, subject.schedule};
}

// The scenario at half, twice and four times the micro-batch size, one micro-batch per stage (or one batch): points for interpolation.
void add_other_sizes(Job& job, const SubjectRequest& request, const Subject& subject) {
  if (!subject.scenario) return;
  const Scenario& scenario = *subject.scenario;
  const std::int64_t size = scenario.batch.micro_batch, stages = axis_size(scenario.mesh, "pp");
  const std::int64_t micro_batches = batch_on_every_rank(scenario) ? 1 : stages;
  std::set<std::int64_t> sizes{2 * size, 4 * size};
  if (size > 1) sizes.insert(size / 2);
  for (const std::int64_t other : sizes) {
    if (other * stages % pieces_of_batch(scenario) != 0) continue;  // it could not be cut
    SubjectRequest sized = request;
    sized.overrides.push_back({"batch.micro_batch_size", std::to_string(other)});
    sized.overrides.push_back({"batch.micro_batches", std::to_string(micro_batches)});
    job.work.push_back(work_of(sound_subject(sized, job.session), fmt::format(", micro-batch size {}", other)));
  }
}

void add_sweep(Job& job) {
  std::set<std::uint32_t> members{2, 3, 4};
  for (const Subject& subject : job.subjects)
    for (const Axis& axis : subject.schedule.mesh.axes) members.insert(axis.size);
  for (SweepSchedule& sweep : sweep_schedules(members)) {
    const std::string digest = schedule_digest(sweep.schedule);
    job.work.push_back({sweep.name, digest, std::move(sweep.schedule), sweep.together});
  }
}

void read_subjects(Job& job) {
  const bool sweep = job.options.flag("sweep");
  if (job.options.positionals().empty() && !sweep)
    throw usage_error("missing SCENARIO", "or give --sweep alone: messages, collectives and copies");
  for (const std::string& path : job.options.positionals()) {
    SubjectRequest request{path, parse_overrides(job.options.list("set")), {}, {}};
    request = with_text(std::move(request));
    job.subjects.push_back(sound_subject(request, job.session));
    job.work.push_back(work_of(job.subjects.back()));
    if (sweep) add_other_sizes(job, request, job.subjects.back());
  }
  if (sweep) add_sweep(job);
}

// {"variables": {"OMP_NUM_THREADS": "1"}, ...} -> variables.OMP_NUM_THREADS: 1
void flatten(const nlohmann::ordered_json& json, const std::string& path, std::map<std::string, std::string>& out) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) flatten(value, path.empty() ? key : path + "." + key, out);
  } else if (!json.is_null()) {
    out[path] = json.is_string() ? json.get<std::string>() : json.dump();
  }
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (const std::size_t colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos)
      return line.substr(colon + 2);
  return {};
}

std::string host_name() {
  std::string name(256, '\0');
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.c_str()) : std::string();
}

// What only this side knows.
void sign(MeasuredTables& tables, const Backend& backend, const Session& session) {
  tables.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  const std::string processor = processor_name();
  tables.host = host_name() + (processor.empty() ? "" : ", " + processor);
  tables.tool = fmt::format("steptwin {} ({})", kVersion, kGitSha);
  tables.command = session.arguments;
  flatten(nlohmann::ordered_json::parse(backend.environment(), nullptr, false), "", tables.environment);
}

void write_profile(AtomicFile& file, const std::string& path, const Machine& machine) {
  Output out(file.descriptor(), path);
  out.write(machine_profile_json(machine));
  out.flush();
  file.commit();
}

// How much of each scenario the new profile knows.
std::vector<ScenarioCoverage> coverage_of(const Job& job, const Machine& machine) {
  std::vector<ScenarioCoverage> list;
  const std::unique_ptr<CostModel> costs = measured_costs(machine);
  for (const Subject& subject : job.subjects) {
    const Trace trace = simulate(subject.schedule, *costs, &machine);
    ScenarioCoverage coverage;
    coverage.name = subject.name;
    for (const Provenance asked : {Provenance::Analytic, Provenance::Interpolated, Provenance::Measured})
      coverage.ops += trace.provenance[static_cast<std::size_t>(asked)];
    coverage.measured = trace.provenance[static_cast<std::size_t>(Provenance::Measured)];
    list.push_back(std::move(coverage));
  }
  return list;
}

Exit stop_with(const Outcome& outcome, const StopScope& stop, const Session& session) {
  if (outcome.status == Status::Interrupted) {
    session.messages.block("interrupted; no profile was written");
    return stop.exit_code();
  }
  std::string text = "error: " + outcome.text;
  for (const std::string& line : outcome.details) text += "\n  " + line;
  session.messages.block(text + "\nno profile was written");
  return Exit::Deadlock;
}

void print_report(const CalibrationReport& report, const Options& options, const Session& session) {
  const MeasuredTables& tables = *report.machine.measured;
  const double share = tables.processor_share.value_or(1);
  if (share < Calibration::kBusy && tables.clock == "wall")
    session.messages.warning(
        fmt::format("the machine was busy: the thread had {} of a processor, and the times show it", human_percent(share)));
  const Format format = format_of(options);
  const bool json = format == Format::Json || format == Format::Jsonl;
  session.out.write(json ? calibration_json(report, format) : calibration_card(report, session.micro()));
  session.out.flush();
  const std::string word = report.path.find_first_of("./") == std::string::npos ? "./" + report.path : report.path;
  session.messages.note("next: steptwin simulate SCENARIO --machine " + word);
}

}  // namespace

Exit run_calibrate(const Options& options, Session& session) {
  if (!options.given("out")) throw usage_error("missing --out FILE", "steptwin calibrate SCENARIO --out profile.json");
  if (const Launch launch = launch_of_process(); !launch.alone())
    throw usage_error(fmt::format("calibrate runs in one process, and {} started {}", launch.launcher, launch.world), "start it without a launcher");
  const std::string path = options.text("out");
  const auto start = std::chrono::steady_clock::now();
  Job job{options, session, {}, {}};
  read_subjects(job);
  const StopScope stop;
  AtomicFile file(path, options.flag("force") ? AtomicFile::Overwrite::Allow : AtomicFile::Overwrite::Refuse);  // refused before any work
  ExecuteOptions execute = execute_options(options);
  execute.stop = &stop.flag();
  if (backend_of(options) == BackendKind::Cpu)
    for (const CalibrationSubject& work : job.work) require_execution_memory(work.schedule, execute.steps, std::nullopt);
  const std::unique_ptr<Backend> backend = load_backend(backend_of(options));
  Calibration calibration(machine_named(options.text("machine", kBase)), execute, std::move(job.work));
  const auto rounds = static_cast<std::uint32_t>(options.whole("rounds", kRounds));
  while (calibration.rounds() < rounds) {
    const Outcome outcome = calibration.run_round(*backend);
    if (outcome.status != Status::Ok) return stop_with(outcome, stop, session);
    session.messages.note(fmt::format("round {} of {} done", calibration.rounds(), rounds));
  }
  CalibrationReport report;
  report.path = path;
  report.machine = calibration.machine(backend->name());
  sign(*report.machine.measured, *backend, session);
  write_profile(file, path, report.machine);
  report.coverage = coverage_of(job, report.machine);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print_report(report, options, session);
  return Exit::Ok;
}

}  // namespace steptwin
