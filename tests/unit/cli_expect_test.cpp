#include <gtest/gtest.h>

#include "cli/expect.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

const std::vector<std::string> kKeys{"step_time_ns", "bubble_fraction", "mfu", "peak_allocated_bytes", "tokens_per_second"};
const NamedNumbers kNumbers{{"step_time_ns", 179'400'000}, {"bubble_fraction", 0.25}, {"peak_allocated_bytes", 3221225472}, {"mfu", 0.386}};

ExpectationResult check(const std::string& text) { return evaluate(parse_expectation(text, kKeys), kNumbers); }

TEST(Expect, UnitsAndShortNames) {
  EXPECT_TRUE(check("step_ms<200").holds);
  EXPECT_FALSE(check("step_ms<179").holds);
  EXPECT_DOUBLE_EQ(check("step_s<1").value, 0.1794);
  EXPECT_TRUE(check("step_time_us == 179400").holds);
  EXPECT_TRUE(check("peak_mem_gib<=3").holds);
  EXPECT_FALSE(check("peak_mem_gib<3").holds);
  EXPECT_TRUE(check("bubble_pct>=25").holds);
  EXPECT_TRUE(check("mfu_pct>38.5").holds);
  EXPECT_TRUE(check(" step_time_ns != 1 ").holds);
}

TEST(Expect, AMissingNumberNeverHolds) {
  EXPECT_FALSE(check("tokens_per_second>0").holds);
  EXPECT_FALSE(check("tokens_per_second!=0").holds);
}

TEST(Expect, WrongFormsAreUsageErrors) {
  for (const char* text : {"", "step_ms", "<3", "step_ms<", "step_ms=3", "step_ms<3ms", "step_ms<nan", "step_ms<inf", "step_ms!3",
                           "stepp_ms<3", "mfu_gib<3"}) {
    EXPECT_THROW(check(text), InputError) << text;
  }
}

}  // namespace
}  // namespace steptwin
