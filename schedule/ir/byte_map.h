// What is known about every byte of one buffer: disjoint segments, ascending and without gaps, each with one State. A range is
// visited as whole segments, which are split at its ends; a range that gets one new state becomes one segment again, so whole
// writes keep the map short.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/ir/schedule.h"

namespace steptwin {

template <class State>
class ByteMap {
 public:
  explicit ByteMap(State initial) { segments_.push_back({0, std::move(initial)}); }

  // visit(State&) for every segment inside the range; an empty range has none.
  template <class Visit>
  void each(ByteRange range, Visit visit) {
    const auto [first, last] = segments_in(range);
    for (std::size_t i = first; i < last; ++i) visit(segments_[i].state);
  }

  void assign(ByteRange range, const State& state) {
    const auto [first, last] = segments_in(range);
    if (first == last) return;
    segments_[first].state = state;
    segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(first + 1), segments_.begin() + static_cast<std::ptrdiff_t>(last));
  }

 private:
  struct Segment {
    std::int64_t first = 0;  // to the next segment's first; the last one is open
    State state;
  };

  std::size_t cut(std::int64_t at) {
    const auto after =
        std::lower_bound(segments_.begin(), segments_.end(), at, [](const Segment& s, std::int64_t value) { return s.first < value; });
    const auto index = static_cast<std::size_t>(after - segments_.begin());
    if (after != segments_.end() && after->first == at) return index;
    Segment copy{at, segments_[index - 1].state};
    segments_.insert(after, std::move(copy));
    return index;
  }

  std::pair<std::size_t, std::size_t> segments_in(ByteRange range) {
    if (range.size <= 0) return {0, 0};
    const std::size_t first = cut(range.first);
    return {first, cut(range.first + range.size)};
  }

  std::vector<Segment> segments_;
};

}  // namespace steptwin
