#pragma once

#include <algorithm>
#include <vector>

namespace steptwin {

// Of an even number of values the mean of the middle two; zero of none.
template <class Value>
Value median(std::vector<Value> values) {
  if (values.empty()) return Value{};
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace steptwin
