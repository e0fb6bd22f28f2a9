// One execution on a GPU that stops between rounds, so that another program can use the GPU in turn: cuda_speed.py drives it.
// usage: cuda_speed_server SCENARIO.json TEXT ROUNDS STEPS
// Prints "ready" and waits for a line before every round; a round is 1 + STEPS steps, of which the first warms up. At the end: one JSON
// array a round with the lengths of its STEPS steps in ms (distance of ends on the device).
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include "exec/cuda/cuda_execution.h"
#include "exec/ops/compute.h"
#include "schedule/compile.h"
#include "schedule/json/json_reader.h"
#include "schedule/scenario.h"

using namespace steptwin;

int main(int argc, char** argv) {
  if (argc < 5) return fmt::print("usage: cuda_speed_server SCENARIO.json TEXT ROUNDS STEPS\n"), 2;
  const auto rounds = static_cast<std::uint32_t>(std::atoi(argv[3])), each = static_cast<std::uint32_t>(std::atoi(argv[4])) + 1;
  const Schedule schedule = compile(load_scenario(argv[1]));
  const std::string text = read_text_file(argv[2]);
  ExecuteOptions options;
  options.mode = ExecutionMode::Streams;
  options.text.assign(text.begin(), text.end());
  options.steps = rounds * each + 1;  // the first one alone: libraries load, the pool fills
  options.before_op = [&](RankId rank, OpId op, std::uint32_t step) {
    if (rank.value != 0 || op != schedule.programs[0].first_op || step % each != 1) return;
    cudaDeviceSynchronize();
    fmt::print("ready\n");
    std::fflush(stdout);
    std::string line;
    std::getline(std::cin, line);
  };
  set_up_library(Determinism::None);
  const Trace trace = CudaExecution(schedule, options).run().trace;
  std::vector<std::int64_t> ends(options.steps);
  for (const Span& span : trace.spans) ends[span.step] = std::max(ends[span.step], ns(span.end));
  for (std::uint32_t round = 0; round < rounds; ++round) {
    fmt::print("[");
    for (std::uint32_t i = 1; i < each; ++i) {
      const std::uint32_t step = 1 + round * each + i;
      fmt::print("{}{:.3f}", i == 1 ? "" : ", ", static_cast<double>(ends[step] - ends[step - 1]) / 1e6);
    }
    fmt::print("]\n");
  }
}
