#include "tests/conformance/backends.h"

#include <ostream>
#include <utility>

#include "exec/cpu/execution.h"
#include "tests/support/process_run.h"

namespace steptwin::test {
namespace {

ExecutionResult executed(ExecutionMode mode, const Schedule& schedule, ExecuteOptions options) {
  options.mode = mode;
  return execute_on_cpu(schedule, options);
}

BackendUnderTest cpu(const char* name, ExecutionMode mode) {
  return {name, BackendUnderTest::Kind::Executor, [mode](const Schedule& s, const ExecuteOptions& o) { return executed(mode, s, o); }, {}};
}

}  // namespace

std::vector<BackendUnderTest> executors() {
  return {cpu("interp", ExecutionMode::Interp), cpu("threads", ExecutionMode::Threads),
          {"processes", BackendUnderTest::Kind::Executor, run_as_processes, {}}};
}

std::vector<BackendUnderTest> backends() {
  std::vector<BackendUnderTest> rows = executors();
#ifndef STEPTWIN_EXECUTORS_ONLY  // scripts/tsan.sh: simulators have no threads, and are most of what would have to be compiled
  for (BackendUnderTest& row : simulators()) rows.push_back(std::move(row));
#endif
  return rows;
}

std::vector<BackendUnderTest> one_rank_backends() { return backends(); }

void PrintTo(const BackendUnderTest& backend, std::ostream* out) { *out << backend.name; }

}  // namespace steptwin::test
