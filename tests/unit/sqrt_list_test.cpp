// specs/bmtrain.md 7: BM-04 and BM-05.
#include "schedule/sqrt_list.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace steptwin {
namespace {

std::string text_of(const std::vector<SqrtEntry>& list) {
  std::string text;
  for (const SqrtEntry& entry : list) text += fmt::format("[{},{}] ", entry.restart, entry.slot);
  return text;
}

std::int32_t slots_of(const std::vector<SqrtEntry>& list) { return list.back().slot + 1; }

TEST(SqrtList, TablesOfOneToTwelveLayers) {
  const char* tables[] = {"[0,0] ",
                          "[0,0] [1,1] ",
                          "[0,0] [0,1] [2,1] ",
                          "[0,0] [1,1] [1,2] [3,2] ",
                          "[0,0] [0,2] [2,1] [2,2] [4,2] ",
                          "[0,0] [0,1] [0,2] [3,1] [3,2] [5,2] ",
                          "[0,0] [1,1] [1,2] [1,3] [4,2] [4,3] [6,3] ",
                          "[0,0] [0,3] [2,1] [2,2] [2,3] [5,2] [5,3] [7,3] ",
                          "[0,0] [0,2] [0,3] [3,1] [3,2] [3,3] [6,2] [6,3] [8,3] ",
                          "[0,0] [0,1] [0,2] [0,3] [4,1] [4,2] [4,3] [7,2] [7,3] [9,3] ",
                          "[0,0] [1,1] [1,2] [1,3] [1,4] [5,2] [5,3] [5,4] [8,3] [8,4] [10,4] ",
                          "[0,0] [0,4] [2,1] [2,2] [2,3] [2,4] [6,2] [6,3] [6,4] [9,3] [9,4] [11,4] "};
  const std::int32_t slots[] = {1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5};
  for (std::int32_t layers = 1; layers <= 12; ++layers) {
    EXPECT_EQ(text_of(sqrt_list(layers)), tables[layers - 1]);
    EXPECT_EQ(slots_of(sqrt_list(layers)), slots[layers - 1]);
  }
}

std::int64_t forwards_again(const std::vector<SqrtStep>& steps) {
  return std::count_if(steps.begin(), steps.end(), [](const SqrtStep& step) { return step.into_slot >= 0; });
}

TEST(SqrtList, SlotsAndExtraForwardsOfLongLists) {
  for (const auto& [layers, slots] : {std::pair{24, 7}, {40, 9}, {48, 10}, {96, 14}}) {
    const auto list = sqrt_list(layers);
    EXPECT_EQ(slots_of(list), slots);
    EXPECT_EQ(forwards_again(sqrt_backward(list)), layers - slots);
  }
  std::vector<std::int32_t> saved24, saved40;
  for (const SqrtEntry& e : sqrt_list(24))
    if (saved24.empty() || saved24.back() != e.restart) saved24.push_back(e.restart);
  for (const SqrtEntry& e : sqrt_list(40))
    if (saved40.empty() || saved40.back() != e.restart) saved40.push_back(e.restart);
  EXPECT_EQ(saved24, (std::vector<std::int32_t>{0, 3, 9, 14, 18, 21, 23}));
  EXPECT_EQ(saved40, (std::vector<std::int32_t>{0, 4, 12, 19, 25, 30, 34, 37, 39}));
}

std::string backward_text(std::int32_t layers) {
  std::string text;
  for (const SqrtStep& step : sqrt_backward(sqrt_list(layers)))
    text += step.into_slot >= 0 ? fmt::format("RF{}->{} ", step.layer, step.into_slot) : fmt::format("FB{} ", step.layer);
  return text;
}

TEST(SqrtList, BackwardOrders) {  // BM-05
  EXPECT_EQ(backward_text(3), "FB2 RF0->1 FB1 FB0 ");
  EXPECT_EQ(backward_text(6), "FB5 RF3->2 FB4 FB3 RF0->1 RF1->2 FB2 FB1 FB0 ");
  EXPECT_EQ(backward_text(8), "FB7 RF5->3 FB6 FB5 RF2->2 RF3->3 FB4 FB3 FB2 RF0->3 FB1 FB0 ");
}

// Of every list up to 130 layers: at its turn every layer finds its own input in its slot.
TEST(SqrtList, EveryLayerFindsItsInputInItsSlot) {
  for (std::int32_t layers = 1; layers <= 130; ++layers) {
    const auto list = sqrt_list(layers);
    std::vector<std::int32_t> holds(static_cast<std::size_t>(slots_of(list)), -1);  // [slot] -> layer whose input it is
    for (std::int32_t i = 0; i < layers; ++i)
      if (list[static_cast<std::size_t>(i)].restart == i) holds[static_cast<std::size_t>(list[static_cast<std::size_t>(i)].slot)] = i;
    std::int32_t next = layers;
    for (const SqrtStep& step : sqrt_backward(list)) {
      ASSERT_EQ(holds[static_cast<std::size_t>(list[static_cast<std::size_t>(step.layer)].slot)], step.layer) << layers;
      if (step.into_slot >= 0)
        holds[static_cast<std::size_t>(step.into_slot)] = step.layer + 1;
      else
        ASSERT_EQ(step.layer, --next);
    }
    EXPECT_EQ(next, 0);
  }
}

}  // namespace
}  // namespace steptwin
