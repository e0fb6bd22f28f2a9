// What the CUDA executor costs: step time of execute beside a bare stream loop over the same LibTorch calls on the same GPU: one rank, one
// stream, every buffer preallocated and bound beforehand, ops in issue order; no events, machine, pool or recorder. Rounds alternate;
// medians of the rounds' medians. Limit 1.02 (issue 4). usage: cuda_overhead SCENARIO.json TEXT [rounds] [steps]
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "exec/cpu/training_state.h"
#include "exec/cuda/cuda_check.h"
#include "exec/cuda/cuda_execution.h"
#include "exec/cuda/lane_guard.h"
#include "schedule/compile.h"
#include "schedule/json/json_reader.h"
#include "schedule/scenario.h"

using namespace steptwin;

namespace {

class BareLoop {
 public:
  BareLoop(const Schedule& schedule, const ExecuteOptions& options) : schedule_(schedule), matching_(match(schedule, Folding::None)) {
    for (const Communicator& comm : schedule.communicators) comms_.push_back(expand(schedule.mesh, comm));
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
    source_ = std::make_unique<CudaMemory>(0, stream_);
    memories_.emplace_back(schedule, schedule.programs[0], matching_.ranks[0].rank, comms_, *source_);
    training_ = std::make_unique<TrainingState>(schedule, matching_, memories_, options);
    training_->initialise_parameters();
    training_->begin_step(0, 0);
    walk();
    cuda_check(cudaDeviceSynchronize(), "load");
  }
  ~BareLoop() {
    memories_.clear();
    source_.reset();
    cudaStreamDestroy(stream_);
  }

  double step_ms() {
    const auto begin = std::chrono::steady_clock::now();
    StepContext context = training_->context(0, step_++);
    context.device = 0;
    const LaneGuard guard(stream_, 0);
    for (const auto& [op, operands] : calls_) run_compute(schedule_, schedule_.programs[0], op, operands, context);
    cuda_check(cudaStreamSynchronize(stream_), "run a step");
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  // The pool's own order of allocations and drops gives buffers the addresses they would have; nothing is allocated in the loop.
  void walk() {
    const InstructionList list = lower(schedule_, matching_.tables[0]);
    RankMemory& memory = memories_[0];
    for (const Instruction& instruction : list.instructions) {
      if (instruction.kind == Instruction::Kind::Alloc) memory.allocate(instruction.value);
      if (instruction.kind == Instruction::Kind::Free) memory.drop(instruction.value);
      if (instruction.kind == Instruction::Kind::Mark) memory.begin_op(instruction.op);
      if (instruction.kind != Instruction::Kind::Launch) continue;
      const auto operands = memory.operands(instruction.op);
      calls_.emplace_back(OpId(schedule_.programs[0].first_op.value + instruction.op),
                          std::vector<BoundAccess>(operands.begin(), operands.end()));
      memory.end_op(instruction.op);
    }
  }

  const Schedule& schedule_;
  Matching matching_;
  std::vector<CommInstances> comms_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CudaMemory> source_;
  std::vector<RankMemory> memories_;
  std::unique_ptr<TrainingState> training_;
  std::vector<std::pair<OpId, std::vector<BoundAccess>>> calls_;
  std::uint32_t step_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double executor_ms(const Schedule& schedule, const ExecuteOptions& options) {
  const Trace trace = CudaExecution(schedule, options).run().trace;
  std::vector<std::int64_t> ends(options.steps);
  for (const Span& span : trace.spans) ends[span.step] = std::max(ends[span.step], ns(span.end));
  std::vector<double> steps;
  for (std::size_t i = 1; i < ends.size(); ++i) steps.push_back(static_cast<double>(ends[i] - ends[i - 1]) / 1e6);
  return median(steps);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return fmt::print("usage: cuda_overhead SCENARIO.json TEXT [rounds] [steps]\n"), 2;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 10;
  const Schedule schedule = compile(load_scenario(argv[1]));
  ExecuteOptions options;
  options.mode = ExecutionMode::Streams;
  options.warm_up = 2;
  options.steps = argc > 4 ? static_cast<std::uint32_t>(std::atoi(argv[4])) : 6;
  const std::string text = read_text_file(argv[2]);
  options.text.assign(text.begin(), text.end());
  set_up_library(Determinism::None);
  std::vector<double> own, bare;
  for (int round = 0; round < rounds; ++round) {
    own.push_back(executor_ms(schedule, options));
    BareLoop loop(schedule, options);
    std::vector<double> steps;
    for (std::uint32_t i = 0; i < options.warm_up + options.steps; ++i) steps.push_back(loop.step_ms());
    steps.erase(steps.begin(), steps.begin() + options.warm_up);
    bare.push_back(median(steps));
    fmt::print("round {:2}: bare loop {:8.3f} ms, executor {:8.3f} ms\n", round + 1, bare.back(), own.back());
    std::fflush(stdout);
  }
  fmt::print("{}: executor / bare loop {:.4f} (medians of {} rounds; bare {:.3f} to {:.3f} ms, executor {:.3f} to {:.3f} ms)\n", argv[1],
             median(own) / median(bare), rounds, *std::min_element(bare.begin(), bare.end()), *std::max_element(bare.begin(), bare.end()),
             *std::min_element(own.begin(), own.end()), *std::max_element(own.begin(), own.end()));
}
