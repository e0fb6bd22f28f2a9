// What verify says about a schedule text, as formatted diagnostics; for tests with one finding a case.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"

namespace steptwin {

inline Schedule parsed(const std::string& text) { return parse_schedule(text, "t.sched"); }

inline std::vector<std::string> verdict(const Schedule& schedule, const VerifyOptions& options = {}) {
  std::vector<std::string> out;
  for (const Diagnostic& d : verify(schedule, options)) out.push_back(format_diagnostic(d));
  return out;
}
inline std::vector<std::string> verdict(const std::string& text, const VerifyOptions& options = {}) {
  return verdict(parsed(text), options);
}

// Exactly one finding, with this code and this text.
inline testing::Matcher<std::vector<std::string>> only(const std::string& code, const std::string& text) {
  return testing::ElementsAre(testing::AllOf(testing::HasSubstr("[" + code + "]"), testing::HasSubstr(text)));
}

// Heads of schedules: two ranks and a communicator; one program of two ranks with lanes and buffers.
inline const std::string kTwo = "mesh pp 2\ncomm c axes pp\n";
inline const std::string kOne = R"(mesh dp 2
comm c axes dp
program p ranks all
  lane a compute
  lane b copy_up
  lane n network
  buffer x 16B
  buffer y 16B
  buffer w 16B resident
  buffer ok 4B
)";

// Rank 0 issues `first`, rank 1 `second`; communicators c and d join them.
inline std::string two_programs(const std::string& first, const std::string& second) {
  return kTwo + "comm d axes pp\nprogram p ranks 0\n lane n network\n lane k network\n" + first +
         "program q ranks 1\n lane n network\n lane k network\n" + second;
}

}  // namespace steptwin
