#include "cli/processes.h"

#include <fmt/core.h>

#include "cli/errors.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "schedule/base/digest.h"
#include "steptwin_version.h"

namespace steptwin {

namespace {

constexpr const char *kStart = "start", *kExit = "exit";  // keys
constexpr const char* kNow = "now";                       // the value of kStart, unless there is nothing to start

Exit exit_of(const std::optional<std::string>& text, const StopScope& stop) {
  return text ? static_cast<Exit>(std::stoi(*text)) : stop.exit_code();
}

std::string text_digest(const std::vector<std::uint8_t>& text) {
  return sha256_hex(std::string_view(reinterpret_cast<const char*>(text.data()), text.size())).substr(0, 16);
}

}  // namespace

Launch launch_of_process() { return launch_from(process_environment); }

void refuse_for_processes(const Options& options, const Launch& launch) {
  if (launch.alone()) return;
  const std::string several = fmt::format(" ({} started {})", launch.launcher, launch.world);
  if (options.text("mode") == "threads")
    throw usage_error("--mode threads runs all ranks in one process, and there are several" + several, "leave --mode out");
  if (options.text("backend") == "cuda" && options.text("transport") == "local")
    throw usage_error("--transport local joins ranks of one process, and there are several" + several, "leave --transport out: NCCL");
  if (options.given("partition"))
    throw usage_error("--partition divides a GPU among the ranks of one process, and there are several" + several, "leave --partition out");
  if (options.given("save"))
    throw usage_error("--save needs the state of all ranks in one process, and there are several" + several,
                      "leave --save out, or run all ranks in one process; --load works");
}

std::unique_ptr<ProcessGroup> join_processes(const Launch& launch, Backend& backend, const std::string& digest,
                                             const ExecuteOptions& options) {
  ProcessGroup::Limits limits;
  if (options.deadline.count() > 0) limits.join = options.deadline;
  auto group = std::make_unique<ProcessGroup>(launch, backend.connect(launch, limits.join), limits);
  group->join(fmt::format("schedule {}, {} steps behind {}, seed {}, text {}, start {}, gradients {}, backend {}, steptwin {} {}", digest,
                          options.steps, options.warm_up, options.seed, text_digest(options.text),
                          options.load.empty() ? "drawn" : options.load, options.keep_gradients ? "kept" : "not kept", backend.name(),
                          kVersion, kGitSha));
  return group;
}

void tell_to_start(ProcessGroup& group) { group.store().set(kStart, kNow); }

void tell_exit(ProcessGroup& group, Exit exit) {
  group.store().set(kExit, fmt::format("{}", static_cast<int>(exit)));
  group.store().set_first(kStart, "never");  // who still waits for the start finds the exit behind it
}

Exit follow(ProcessGroup& group, Backend& backend, const Schedule& schedule, ExecuteOptions options) {
  const StopScope stop;
  options.stop = &stop.flag();
  const auto start = group.await(kStart, options.stop);
  if (!start) return stop.exit_code();
  if (*start == kNow && backend.run(schedule, options).trace.outcome.status == Status::Interrupted) return stop.exit_code();
  return exit_of(group.await(kExit, options.stop), stop);
}

}  // namespace steptwin
