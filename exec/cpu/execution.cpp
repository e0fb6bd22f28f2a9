#include "exec/cpu/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <thread>

#include "exec/cpu/failure.h"
#include "exec/cpu/finish_run.h"
#include "exec/present.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

std::int64_t thread_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec;
}

}  // namespace

Execution::Execution(const Schedule& schedule, const ExecuteOptions& options)
    : schedule_(schedule),
      options_(options),
      matching_(matching_of(schedule, options.group)),
      start_(std::chrono::steady_clock::now()),
      step_start_(start_) {
  invariant(options.clock == StampClock::Wall || options.mode == ExecutionMode::Interp,
            "several threads have no time in common but the wall's");
  invariant(options.group == nullptr || (options.mode == ExecutionMode::Interp && options.clock == StampClock::Wall),
            "one of several processes runs in mode interp, by the wall's clock");
  for (const ProgramTables& tables : matching_.tables) {
    lists_.push_back(lower(schedule, tables));
    const std::vector<Diagnostic> problems = check_instructions(schedule, tables, lists_.back());
    if (!problems.empty()) throw InternalError("lowering: " + problems.front().code + " " + problems.front().text);
  }
  for (const Communicator& comm : schedule.communicators) comms_.push_back(expand(schedule.mesh, comm));
  allocate_resident_buffers();
  training_ = std::make_unique<TrainingState>(schedule, matching_, memories_, options);
  recorder_ = std::make_unique<Recorder>(schedule, matching_, memories_, options.warm_up, [this] { return now(); });
  machine_ = std::make_unique<StepMachine>(schedule, matching_, lists_, memories_, options.warm_up + options.steps, hooks());
}

void Execution::allocate_resident_buffers() {
  memories_.reserve(matching_.ranks.size());
  for (const SimRank& rank : matching_.ranks) {
    try {
      memories_.emplace_back(schedule_, schedule_.programs[matching_.tables[rank.tables].program.value], rank.rank, comms_);
    } catch (...) {
      rethrow_from(fmt::format("rank {} failed while allocating its resident buffers", rank.rank.value));
    }
  }
}

std::int64_t Execution::now() const {
  if (options_.clock == StampClock::Wall) return std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - start_).count();
  return thread_time() - thread_start_;
}

StepMachine::Hooks Execution::hooks() {
  StepMachine::Hooks hooks;
  hooks.begin_step = [this](std::uint32_t rank, std::uint32_t step) {
    training_->begin_step(rank, step);
    recorder_->begin_step(rank, step);
  };
  hooks.step_done = [this](std::uint32_t rank, std::uint32_t step, const OpTimes* times) {
    training_->end_step(rank, step);
    recorder_->step_done(rank, step, times);
  };
  hooks.marked = [this](std::uint32_t rank, std::uint32_t step, std::uint32_t op) {
    recorder_->marked(rank, step, op);
    if (std::holds_alternative<HostWait>(schedule_.ops[id_of(rank, op).value].body)) announce(rank, op);
  };
  hooks.now = [this] { return now(); };
  return hooks;
}

ExecutionResult Execution::run() {
  training_->initialise_parameters();
  const bool begins = options_.group == nullptr || options_.group->barrier("start", options_.stop);
  start_ = step_start_ = std::chrono::steady_clock::now();
  thread_start_ = thread_time();
  if (begins) drive();
  if (options_.group != nullptr) report(ProcessGroup::Activity::Done);
  for (std::uint32_t r = 0; r < memories_.size() && begins && !machine_->finished(); ++r)
    recorder_->partial_step(r, machine_->step(r), machine_->times(r), [this, r](std::uint32_t op) { return machine_->has_ended(r, op); });
  const Outcome end = outcome();
  if (end.status == Status::Ok) training_->save();
  ExecutionResult result = finish_run(schedule_, options_, matching_, *training_, *recorder_, {end, machine_->ops_done(), start_});
  result.facts = training_->facts();
  result.environment_json = library_versions();
  return result;
}

void Execution::drive() {
  machine_->start();
  if (options_.mode == ExecutionMode::Interp) {
    drive_interp(*this);
  } else {
    drive_threads(*this);
  }
}

Outcome Execution::outcome() const {
  Outcome outcome;
  const auto ending = options_.group == nullptr ? ProcessGroup::Ending::None : options_.group->ending();
  if (machine_->finished() && ending == ProcessGroup::Ending::None) return outcome;
  if (stopped_here() || ending == ProcessGroup::Ending::Interrupted) {
    if (options_.group != nullptr) options_.group->end(ProcessGroup::Ending::Interrupted);
    outcome.details = positions();
    outcome.status = Status::Interrupted;
    outcome.text = "stopped by a signal";
    return outcome;
  }
  outcome.details = positions();
  outcome.status = Status::Deadlock;
  outcome.text = "the step cannot go on: every rank waits for another";
  return outcome;
}

std::vector<std::string> Execution::positions() const {
  std::vector<std::string> lines = machine_->positions();
  if (options_.group == nullptr) return lines;
  for (std::string& line : options_.group->positions()) lines.push_back(std::move(line));
  std::sort(lines.begin(), lines.end());
  return lines;
}

OpId Execution::id_of(std::uint32_t rank, std::uint32_t op) const {
  return OpId(schedule_.programs[matching_.tables[matching_.ranks[rank].tables].program.value].first_op.value + op);
}

bool Execution::takes_slot(const Task& task) const {
  if (task.transfer) return false;
  const OpId id = id_of(task.rank, task.op);
  return schedule_.program_of(id).lanes[schedule_.ops[id.value].lane.value].engine == Engine::Compute;
}

void Execution::announce(std::uint32_t rank, std::uint32_t op) const {
  if (options_.before_op) options_.before_op(matching_.ranks[rank].rank, id_of(rank, op), machine_->step(rank));
}

template <class Work>
void Execution::at_op(std::uint32_t rank, std::uint32_t op, Work work) const {
  try {
    work();
  } catch (...) {
    rethrow_from(schedule_, matching_.ranks[rank].rank, id_of(rank, op), machine_->step(rank));
  }
}

void Execution::work(const Task& task) {
  if (task.transfer) return work_transfer(task);
  at_op(task.rank, task.op, [&] {
    announce(task.rank, task.op);
    work_local(task);
  });
}

void Execution::work_local(const Task& task) {
  RankMemory& memory = memories_[task.rank];
  if (!memory.does_work(task.op)) return training_->guarded_off(task.rank, machine_->step(task.rank), task.op);
  const OpId id = id_of(task.rank, task.op);
  const Op& op = schedule_.ops[id.value];
  if (std::holds_alternative<Copy>(op.body)) return copy(op, task);
  const auto operands = memory.operands(task.op);
  if (operands.empty()) return;  // an op of a schedule text that only states its time
  const std::uint32_t step = machine_->step(task.rank);
  training_->before_op(task.rank, step, task.op);
  run_compute(schedule_, schedule_.program_of(id), id, operands, training_->context(task.rank, step));
  training_->after_op(task.rank, step, task.op);
}

void Execution::copy(const Op& op, const Task& task) {
  const MemberMemory memory = memories_[task.rank].member_memory(task.op);
  const Copy& body = std::get<Copy>(op.body);
  if (memory.in.empty() || memory.out.empty()) return;
  const std::int64_t elements = memory.in.bytes() / size_of(body.from);
  if (memory.out.bytes() < elements * size_of(body.to))
    throw EnvironmentError(EnvironmentError::Kind::Device,
                           fmt::format("a copy of {} elements does not fit {} bytes", elements, memory.out.bytes()));
  if (body.from == body.to) return copy_bytes(memory.in, 0, memory.out, 0, memory.in.bytes());
  const FlatView::Stretch from = memory.in.from(0), to = memory.out.from(0);
  if (from.bytes != memory.in.bytes() || to.bytes != memory.out.bytes())
    throw EnvironmentError(EnvironmentError::Kind::Device, "a copy with a cast has one source and one target");
  convert(to.data, body.to, from.data, body.from, elements);
}

void Execution::work_transfer(const Task& task) {
  const std::vector<TransferEnd> ends = machine_->ends_of(task);
  std::vector<MemberMemory> members;
  for (const TransferEnd& end : ends) {
    at_op(end.rank, end.op, [&] { announce(end.rank, end.op); });
    if (memories_[end.rank].does_work(end.op)) members.push_back(memories_[end.rank].member_memory(end.op));
  }
  if (members.size() != ends.size()) return;
  at_op(ends.front().rank, ends.front().op, [&] { communicate(schedule_.ops[id_of(task.rank, task.op).value].body, members); });
}

// ---- several processes -----------------------------------------------------------------------------------------------------
bool Execution::open_remote(const Task& task) {
  if (options_.group == nullptr) return false;
  const TransferName name = machine_->name_of(task);
  const std::vector<TransferEnd> ends = machine_->ends_of(task);
  if (ends.size() == name.members) return false;
  std::vector<RemoteTransfer::Member> present;
  auto work = RemoteTransfer::Work::Move;
  for (const TransferEnd& end : ends) {
    at_op(end.rank, end.op, [&] { announce(end.rank, end.op); });
    if (!memories_[end.rank].does_work(end.op)) work = RemoteTransfer::Work::MeetOnly;
    present.push_back({end.member, memories_[end.rank].member_memory(end.op)});
  }
  const std::string key =
      fmt::format("data/{}.{}/{}-{}/{}.{}", name.comm, name.instance, name.sender, name.receiver, name.step, name.sequence);
  at_op(task.rank, task.op, [&] {
    open_.push_back({task, RemoteTransfer(options_.group->store(), key, schedule_.ops[id_of(task.rank, task.op).value].body, name.members,
                                          std::move(present), work)});
  });
  return true;
}

bool Execution::finish_remote() {
  for (auto open = open_.begin(); open != open_.end(); ++open) {
    const Task task = open->task;
    bool over = false;
    at_op(task.rank, task.op, [&] { over = open->remote.try_finish(); });
    if (!over) continue;
    open_.erase(open);
    idle_ = 0;
    machine_->ended(task);
    return true;
  }
  return false;
}

// Looking costs the others processor time where there are fewer cores than processes.
bool Execution::wait_for_others() {
  if (open_.empty()) return false;
  report(ProcessGroup::Activity::Waiting);
  idle_ = std::min(idle_ + 1, 20u);
  std::this_thread::sleep_for(idle_ * std::chrono::microseconds(25));
  return true;
}

void Execution::report(ProcessGroup::Activity activity) {
  options_.group->report(activity, machine_->ops_done(), [this] {
    std::string lines;
    for (const std::string& line : machine_->positions()) lines += (lines.empty() ? "" : "\n") + line;
    return lines;
  });
}

// ---- limits ----------------------------------------------------------------------------------------------------------------
void Execution::check_run() {
  check_deadline();
  if (options_.group == nullptr) return;
  options_.group->check();
  if (open_.empty()) report(ProcessGroup::Activity::Working);
}

void Execution::check_deadline() {
  if (options_.deadline.count() == 0) return;
  const auto moment = std::chrono::steady_clock::now();
  if (const std::uint32_t step = machine_->slowest_step(); step != slowest_step_) slowest_step_ = step, step_start_ = moment;
  if (moment - step_start_ < options_.deadline) return;
  std::string text = fmt::format("the deadline of {} ms passed in step {}", options_.deadline.count(), slowest_step_);
  for (const std::string& line : positions()) text += "\n  " + line;
  throw EnvironmentError(EnvironmentError::Kind::Device, text, "a longer --timeout, or look at the ops named above");
}

ExecutionResult execute_on_cpu(const Schedule& schedule, const ExecuteOptions& options) { return Execution(schedule, options).run(); }

}  // namespace steptwin
