// Times that int64 nanoseconds may not hold are refused before they are added up (sim/time_range.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/base/error.h"
#include "schedule/ir/text.h"
#include "sim/cost/cost_models.h"
#include "sim/simulate.h"

namespace steptwin {
namespace {

constexpr std::uint32_t kOpsOfElevenDays = 4000;  // 10^15 ns each, the longest time an op may state: 4 x 10^18 ns in all

Schedule chain(std::uint32_t ops) {
  std::string text = "mesh pp 1\nprogram p ranks all\n  lane compute compute\n";
  for (std::uint32_t i = 0; i < ops; ++i) text += "  " + std::to_string(i) + " compute F mb" + std::to_string(i) + " lane compute time 1000000s\n";
  return parse_schedule(text, "chain.sched");
}

Trace run(const Schedule& schedule, std::uint32_t steps) {
  SimulateOptions options;
  options.steps = steps;
  return simulate(schedule, *stated_costs(), nullptr, options);
}

TEST(TimeRange, UpToTheLimitTimesAreExact) {
  EXPECT_EQ(run(chain(kOpsOfElevenDays), 1).makespan, Duration(4'000'000'000'000'000'000));
}

TEST(TimeRange, BeyondItTheLongestOpIsNamed) {
  const auto refused = [](const Schedule& schedule, std::uint32_t steps) {
    try {
      run(schedule, steps);
    } catch (const InputError& error) {
      return format_diagnostic(error.problems().front());
    }
    return std::string("nothing thrown");
  };
  EXPECT_THAT(refused(chain(kOpsOfElevenDays + 1), 1), testing::AllOf(testing::HasSubstr("[TIME]"), testing::HasSubstr("`0 compute F mb0")));
  EXPECT_THAT(refused(chain(kOpsOfElevenDays / 2), 3), testing::HasSubstr("longer than the clock can count"));
}

}  // namespace
}  // namespace steptwin
