#include "exec/shared_clock.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

namespace steptwin {
namespace {

constexpr int kRounds = 12;

std::string spin(KvStore& store, const std::string& key, const std::function<void()>& check) {
  for (;;) {
    if (auto value = store.find(key)) {
      store.erase(key);
      return std::move(*value);
    }
    check();
  }
}

std::int64_t number(const std::string& text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::int64_t ClockMap::to_lead(std::int64_t own) const {
  if (end.at <= begin.at) return own + begin.offset;
  const double share = static_cast<double>(own - begin.at) / static_cast<double>(end.at - begin.at);
  return own + begin.offset + static_cast<std::int64_t>(share * static_cast<double>(end.offset - begin.offset));
}

ClockReading ask_clock(KvStore& store, const std::string& key, const ClockNow& now, const std::function<void()>& check) {
  ClockReading best;
  best.uncertainty = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < kRounds; ++i) {
    const std::int64_t asked = now();
    store.set(fmt::format("{}/ask{}", key, i), "?");
    const std::int64_t theirs = number(spin(store, fmt::format("{}/answer{}", key, i), check));
    const std::int64_t answered = now(), half = (answered - asked + 1) / 2;
    if (half < best.uncertainty) best = {answered, theirs - (asked + half), half};
  }
  return best;
}

void answer_clock(KvStore& store, const std::string& key, const ClockNow& now, const std::function<void()>& check) {
  for (int i = 0; i < kRounds; ++i) {
    spin(store, fmt::format("{}/ask{}", key, i), check);
    store.set(fmt::format("{}/answer{}", key, i), fmt::format("{}", now()));
  }
}

}  // namespace steptwin
