#include "schedule/sqrt_list.h"

#include "schedule/base/error.h"

namespace steptwin {

std::vector<SqrtEntry> sqrt_list(std::int32_t layers) {
  invariant(layers >= 1, "a list has a layer");
  std::vector<SqrtEntry> list(static_cast<std::size_t>(layers));
  std::int32_t saved = 0, places_left = 0;
  for (std::int32_t i = layers; i-- > 0;) {
    SqrtEntry& entry = list[static_cast<std::size_t>(i)];
    if (places_left == 0 || i == 0) {
      entry = {i, -++saved};
      places_left = saved;
    } else {
      --places_left;
      entry = {-1, -(saved - places_left)};
    }
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i].slot += saved;
    if (list[i].restart < 0) list[i].restart = list[i - 1].restart;
  }
  return list;
}

std::vector<SqrtStep> sqrt_backward(const std::vector<SqrtEntry>& list) {
  std::vector<SqrtStep> steps;
  const auto layers = static_cast<std::int32_t>(list.size());
  std::vector<bool> there(list.size());
  for (std::int32_t i = 0; i < layers; ++i) there[static_cast<std::size_t>(i)] = list[static_cast<std::size_t>(i)].restart == i;
  for (std::int32_t i = layers; i-- > 0;) {
    for (std::int32_t j = list[static_cast<std::size_t>(i)].restart; j < i && !there[static_cast<std::size_t>(i)]; ++j) {
      steps.push_back({j, list[static_cast<std::size_t>(j) + 1].slot});
      if (j + 1 < i) there[static_cast<std::size_t>(j) + 1] = true;
    }
    steps.push_back({i, -1});
  }
  return steps;
}

}  // namespace steptwin
