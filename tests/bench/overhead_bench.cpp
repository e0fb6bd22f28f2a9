// What the executor costs: step time of `interp` beside a plain hand loop over the same LibTorch calls, on the same parameters and data:
// every buffer preallocated, every operand bound beforehand, ops in the order of an execution; no machine, pool or recorder. Both sides are
// one thread and are timed by its processor time, which a busy machine does not disturb. Rounds alternate, the least step of each side
// counts. Limit 1.05. Usage: overhead_bench [rounds]
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "exec/calibrate/timeline.h"
#include "exec/comm/local.h"
#include "exec/cpu/execution.h"
#include "schedule/compile.h"
#include "schedule/json/json_reader.h"
#include "schedule/scenario.h"

using namespace steptwin;

namespace {

constexpr std::uint32_t kSteps = 3;

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

class HandLoop {
 public:
  HandLoop(const Schedule& schedule, const ExecuteOptions& options, const Trace& order)
      : schedule_(schedule), matching_(match(schedule, Folding::None)) {
    for (const Communicator& comm : schedule.communicators) comms_.push_back(expand(schedule.mesh, comm));
    memories_.reserve(matching_.ranks.size());
    for (const SimRank& rank : matching_.ranks) memories_.emplace_back(schedule, program(rank), rank.rank, comms_);
    training_ = std::make_unique<TrainingState>(schedule, matching_, memories_, options);
    training_->initialise_parameters();
    for (std::uint32_t r = 0; r < memories_.size(); ++r) bind_rank(r);
    for (const WorkItem& item : timeline(matching_, order, ExecutionMode::Interp))
      if (item.step == kSteps - 1) add(item);
  }

  double step_seconds() {
    const double start = thread_seconds();
    const StepContext context = training_->context(0, step_++);
    for (Call& call : calls_) {
      if (call.members.empty())
        run_compute(schedule_, *call.program, call.op, call.operands, context);
      else
        communicate(schedule_.ops[call.op.value].body, call.members);
    }
    return thread_seconds() - start;
  }
  std::size_t calls() const { return calls_.size(); }

 private:
  struct Call {
    const Program* program = nullptr;
    OpId op;
    std::span<const BoundAccess> operands;
    std::vector<MemberMemory> members;  // of a transfer
  };
  const Program& program(const SimRank& rank) const { return schedule_.programs[matching_.tables[rank.tables].program.value]; }

  void bind_rank(std::uint32_t r) {
    const Program& p = program(matching_.ranks[r]);
    for (std::uint32_t b = 0; b < p.buffers.size(); ++b)
      if (!p.buffers[b].resident) memories_[r].allocate(b);
    for (std::uint32_t op = 0; op < p.op_count; ++op) memories_[r].begin_op(op);
    training_->begin_step(r, 0);
  }

  void add(const WorkItem& item) {
    const SimRank& rank = matching_.ranks[item.rank];
    const Program& p = program(rank);
    const OpNode& node = matching_.tables[rank.tables].nodes[item.op];
    Call call{&p, OpId(p.first_op.value + item.op), memories_[item.rank].operands(item.op), {}};
    const Counterpart& other = rank.counterparts.empty() ? Counterpart{} : rank.counterparts[node.channel];
    const auto member = [&](std::uint32_t index, std::uint32_t channel) {
      call.members.push_back(
          memories_[index].member_memory(matching_.tables[matching_.ranks[index].tables].channels[channel].ops[node.sequence]));
    };
    if (node.kind == OpNode::Kind::Message) member(item.rank, node.channel), member(other.rank, other.channel);
    if (node.kind == OpNode::Kind::Collective)
      for (const InstanceMember& m : matching_.instances[other.rank].members) member(m.rank, m.channel);
    calls_.push_back(std::move(call));
  }

  const Schedule& schedule_;
  Matching matching_;
  std::vector<CommInstances> comms_;
  std::vector<RankMemory> memories_;
  std::unique_ptr<TrainingState> training_;
  std::vector<Call> calls_;
  std::uint32_t step_ = 0;
};

double least_step(const Trace& trace) {
  std::vector<std::int64_t> ends(kSteps, 0);
  for (const Span& span : trace.spans) ends[span.step] = std::max(ends[span.step], ns(span.end));
  std::int64_t least = INT64_MAX;
  for (std::uint32_t s = 1; s < kSteps; ++s) least = std::min(least, ends[s] - ends[s - 1]);
  return static_cast<double>(least) / 1e9;
}

// The libraries read these when they are loaded, which has happened: start again with them (exec/module.h sets them before it loads).
void with_thread_environment(char** argv) {
  if (std::getenv("STEPTWIN_BENCH_CHILD") != nullptr) return;
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "STEPTWIN_BENCH_CHILD"}) ::setenv(name, "1", 1);
  ::setenv("OPENBLAS_CORETYPE", "Haswell", 0);
  ::execv("/proc/self/exe", argv);
}

}  // namespace

int main(int argc, char** argv) {
  with_thread_environment(argv);
  set_up_library(Determinism::Bitwise);
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  const Scenario scenario = load_scenario(SOURCE_DIR "/scenarios/gpt2_pp4_small.json");
  const Schedule schedule = compile(scenario);
  const std::string text = read_text_file(SOURCE_DIR "/scenarios/text/rehearsal.txt");
  ExecuteOptions options;
  options.text.assign(text.begin(), text.end());
  options.clock = StampClock::ThreadTime;
  options.warm_up = 1;
  options.steps = kSteps;
  HandLoop loop(schedule, options, execute_on_cpu(schedule, options).trace);
  loop.step_seconds();  // touches everything once
  double executor = 1e9, hand = 1e9;
  for (int round = 0; round < rounds; ++round) {
    executor = std::min(executor, least_step(execute_on_cpu(schedule, options).trace));
    for (std::uint32_t s = 0; s < kSteps; ++s) hand = std::min(hand, loop.step_seconds());
  }
  fmt::print("gpt2_pp4_small, interp, {} calls a step, processor time, least of {} alternating rounds\n", loop.calls(), rounds);
  fmt::print("hand loop  {:8.2f} ms\nexecutor   {:8.2f} ms\nratio      {:8.3f}   (limit 1.05)  {}\n", hand * 1e3, executor * 1e3,
             executor / hand, executor / hand <= 1.05 ? "ok" : "MISS");
  return 0;
}
