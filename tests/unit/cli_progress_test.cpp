// Progress: TTY at most 10 times a second; otherwise nothing for 30 s, then a line every 30 s (specs/ux.md 2.3).
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "cli/progress.h"

namespace steptwin {
namespace {

using namespace std::chrono_literals;

struct Recorder {
  std::vector<std::string> lines;
  Progress::WallClock::time_point start = Progress::WallClock::now();
  Progress progress;
  explicit Recorder(ProgressStyle style)
      : progress(
            style, "simulating", [this](const std::string& text) { lines.push_back(text); }, start) {}
  void at(Progress::WallClock::duration wall) { progress.update(50, 100, at_ns(1'000'000), start + wall); }
};

TEST(Progress, RedrawnAtMostTenTimesASecond) {
  Recorder r(ProgressStyle::Redrawn);
  r.at(100ms);
  EXPECT_TRUE(r.lines.empty());  // short runs show nothing
  for (int ms = 300; ms < 1300; ++ms) r.at(std::chrono::milliseconds(ms));
  EXPECT_EQ(r.lines.size(), 10u);
  EXPECT_EQ(r.lines[0].substr(0, 4), "\r\x1b[K");
  r.progress.finish();
  EXPECT_EQ(r.lines.back(), "\r\x1b[K");
}

TEST(Progress, PlainLinesEveryThirtySeconds) {
  Recorder r(ProgressStyle::Plain);
  for (int s = 0; s < 100; ++s) r.at(std::chrono::seconds(s));
  ASSERT_EQ(r.lines.size(), 3u);  // at 30, 60, 90 s
  EXPECT_EQ(r.lines[0].substr(0, 16), "[steptwin] 30 s:");
  EXPECT_EQ(r.lines[0].back(), '\n');
  EXPECT_EQ(r.lines[0].find('\x1b'), std::string::npos);
  r.progress.finish();
  EXPECT_EQ(r.lines.size(), 3u);
}

TEST(Progress, NoneIsSilent) {
  Recorder r(ProgressStyle::None);
  r.at(1000s);
  EXPECT_TRUE(r.lines.empty());
}

TEST(Progress, TextHasPartTimeRateAndRest) {
  EXPECT_EQ(progress_text("simulating", 62, 100, at_ns(412'000'000), 2), "simulating  62 %  412.0 ms simulated  3.1e-05 M ops/s  ETA 1 s");
}

}  // namespace
}  // namespace steptwin
