#include "cli/progress.h"

#include <fmt/core.h>

#include <utility>

#include "cli/format.h"

namespace steptwin {

namespace {
constexpr auto kRedraw = std::chrono::milliseconds(100);     // the eye follows no faster
constexpr auto kFirstDraw = std::chrono::milliseconds(300);  // short runs show nothing
constexpr auto kPlain = std::chrono::seconds(30);
}  // namespace

Progress::Progress(ProgressStyle style, std::string activity, std::function<void(const std::string&)> write, WallClock::time_point start)
    : style_(style), activity_(std::move(activity)), write_(std::move(write)), start_(start) {
  next_ = start_ + (style_ == ProgressStyle::Redrawn ? WallClock::duration(kFirstDraw) : WallClock::duration(kPlain));
}

void Progress::update(std::uint64_t done, std::uint64_t total, SimTime now, WallClock::time_point wall) {
  if (style_ == ProgressStyle::None || wall < next_) return;
  const double seconds = std::chrono::duration<double>(wall - start_).count();
  const std::string text = progress_text(activity_, done, total, now, seconds);
  if (style_ == ProgressStyle::Redrawn) {
    write_("\r\x1b[K" + text);
    next_ = wall + kRedraw;
    drawn_ = true;
  } else {
    write_(fmt::format("[steptwin] {:.0f} s: {}\n", seconds, text));
    next_ = wall + kPlain;
  }
}

void Progress::finish() {
  if (drawn_) write_("\r\x1b[K");
  drawn_ = false;
}

std::string progress_text(const std::string& activity, std::uint64_t done, std::uint64_t total, SimTime now, double wall_seconds) {
  const double part = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
  const double rate = wall_seconds > 0 ? static_cast<double>(done) / wall_seconds : 0;
  std::string text = fmt::format("{}  {:.0f} %  {} simulated  {} M ops/s", activity, part * 100, human_time(now.time_since_epoch()),
                                 four_digits(rate / 1e6));
  if (rate > 0) text += fmt::format("  ETA {:.0f} s", static_cast<double>(total - done) / rate);
  return text;
}

}  // namespace steptwin
