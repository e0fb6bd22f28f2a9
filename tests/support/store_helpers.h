// What tests of the store share.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "schedule/base/error.h"
#include "tests/support/sample_run.h"
#include "traces/store.h"

namespace steptwin::test {

inline Store open_store(const std::string& path) { return Store(path, Store::Access::ReadWrite); }

inline Store::RunKey store_run(Store& store, const SampleRun& run, const RunInfo& info = sample_info()) {
  const auto key = store.begin_run(info);
  store.finish_run(key, run.schedule, run.digest, run.trace, {{"bubble_fraction", "1", 0.25, {}}});
  return key;
}

// The rows of a query, cells joined by blanks.
inline std::vector<std::string> rows(const Store& store, const std::string& sql, const std::vector<std::string>& parameters = {}) {
  std::vector<std::string> lines;
  for (const auto& row : store.query(sql, parameters).rows) {
    std::string line;
    for (const auto& cell : row) line += (line.empty() ? "" : " ") + (cell.type == Table::Type::Null ? "-" : cell.text);
    lines.push_back(line);
  }
  return lines;
}

inline std::string error_of(const auto& work) {
  try {
    work();
  } catch (const EnvironmentError& e) {
    EXPECT_EQ(e.kind(), EnvironmentError::Kind::Database);
    EXPECT_NE(e.help(), "") << e.what();
    return e.what();
  }
  return "no error";
}

inline std::string input_error_of(const auto& work) {
  try {
    work();
  } catch (const InputError& e) {
    return e.problems().at(0).code + ": " + e.problems().at(0).text + " | " + e.problems().at(0).help;
  }
  return "no error";
}

// Runs `work` in a child process; its exit status.
inline int in_child(const auto& work) {
  const pid_t child = fork();
  if (child == 0) {
    int code = 99;
    try {
      code = work();
    } catch (const EnvironmentError& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
      code = 6;
    } catch (...) {
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace steptwin::test
