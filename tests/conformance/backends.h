// What the conformance suite runs on: one row per backend, in backends.cpp and simulators.cpp. A new backend is one more row.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "exec/backend.h"

namespace steptwin::test {

struct BackendUnderTest {
  enum class Kind { Simulator, Executor };  // Executor: data moves, and ops can fail
  std::string name;                         // one word, part of the test's name
  Kind kind = Kind::Simulator;
  // Of a simulator: Trace alone. Deterministic in its results, not in its times.
  std::function<ExecutionResult(const Schedule&, ExecuteOptions)> run;
  std::string reason_to_skip;  // "no GPU": the tests of this row are skipped
};
void PrintTo(const BackendUnderTest& backend, std::ostream* out);

std::vector<BackendUnderTest> simulators();
std::vector<BackendUnderTest> executors();
std::vector<BackendUnderTest> backends();  // all of them
std::vector<BackendUnderTest> one_rank_backends();  // also those that take one rank per device only

}  // namespace steptwin::test
