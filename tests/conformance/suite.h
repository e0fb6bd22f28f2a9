// The fixture of the conformance tests: one backend of the table, and what every test asks of a run. Compute ops are those of
// tests/fake_ops: op k of a program writes k % 7 + 1 + i % 5 (+ its inputs, modulo 64) into element i; parameter t starts as 2.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/conformance/backends.h"

namespace steptwin::test {

class Conformance : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override;
  bool executes() const { return GetParam().kind == BackendUnderTest::Kind::Executor; }
  // The trace must be whole and obey the schedule.
  ExecutionResult run(const Schedule& schedule, std::uint32_t steps = 1) const;
  // Parameter t of every rank afterwards, where data moves.
  void expect_t(const ExecutionResult& result, const std::vector<std::vector<float>>& of_rank) const;
};

ExecuteOptions conformance_options(std::uint32_t steps = 1);
// Parses and verifies; a problem is a test failure.
Schedule sound_schedule(const std::string& text);
std::string name_of_row(const testing::TestParamInfo<BackendUnderTest>& row);

// One program per rank: rank r has r compute ops without work, then op r writes x, then `op` as op r + 1. Lanes run (compute), net
// (network). Element i of x is r % 7 + 1 + i % 5. Layouts: l<n> is tensor t of n fp32 values, for n of `sizes`.
std::string one_op_per_rank(std::uint32_t ranks, const std::vector<int>& sizes, const std::string& buffers, const std::string& op);

// Three ranks that use every kind of op, groups, guards and HostWaits: 2 micro-batches through a pipeline, then collectives.
Schedule every_kind();

}  // namespace steptwin::test
