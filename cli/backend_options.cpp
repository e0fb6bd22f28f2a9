#include "cli/backend_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "cli/errors.h"
#include "cli/training_text.h"

namespace steptwin {

BackendKind backend_of(const Options& options) {
  const bool cuda = options.text("backend") == "cuda";
  for (const char* name : {"transport", "partition"})
    if (!cuda && options.given(name)) throw usage_error(fmt::format("--{} is an option of the CUDA backend", name), "--backend cuda");
  if (cuda && options.given("mode"))
    throw usage_error("--mode is an option of the CPU backend; on a GPU every lane is a stream", "leave --mode out");
  return cuda ? BackendKind::Cuda : BackendKind::Cpu;
}

ExecuteOptions backend_options(const Options& options) {
  ExecuteOptions result;
  result.mode = backend_of(options) == BackendKind::Cuda ? ExecutionMode::Streams
                : options.text("mode") == "threads"      ? ExecutionMode::Threads
                                                         : ExecutionMode::Interp;
  result.compute_slots = result.mode == ExecutionMode::Threads ? std::max(1u, std::thread::hardware_concurrency()) : 1;
  const std::string transport = options.text("transport");
  result.transport = transport == "local" ? TransportChoice::Local : transport == "nccl" ? TransportChoice::Nccl : TransportChoice::Auto;
  result.partitions = static_cast<std::uint32_t>(options.whole("partition", 0));
  result.seed = static_cast<std::uint64_t>(options.whole("seed", 1));
  result.deadline = std::chrono::seconds(options.whole("timeout", 0));
  result.text = training_text(options);
  if (options.given("data")) result.text_name = "training text " + options.text("data");
  return result;
}

}  // namespace steptwin
