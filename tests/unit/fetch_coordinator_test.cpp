// DeepSpeed's rules of what is gathered and freed (specs/schedules.md 5.4) on traces worked out by hand, and on random ones.
#include "schedule/mechanisms/fetch_coordinator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/random_schedule.h"

namespace steptwin {
namespace {

constexpr std::int64_t kMuch = 1'000'000'000;

struct Model {
  std::vector<FetchedParameter> parameters;
  FetchCoordinator::Uses uses;
};

// One parameter of `elements` a layer; forward, then backward.
Model layers(std::size_t count, std::int64_t elements) {
  Model m;
  for (std::size_t k = 0; k < count; ++k) m.parameters.push_back({elements, false}), m.uses.push_back({k});
  for (std::size_t k = count; k-- > 0;) m.uses.push_back({k});
  return m;
}

std::string list(const std::vector<std::size_t>& parameters) { return fmt::format("{}", fmt::join(parameters, ",")); }

// Use by use: what is gathered, "+" what is gathered ahead, "-" what is freed.
std::string walk(const Model& m, FetchLimits limits) {
  FetchCoordinator coordinator(m.parameters, limits);
  coordinator.begin(m.uses);
  std::string text;
  for (std::size_t use = 0; use < m.uses.size(); ++use) {
    const FetchCoordinator::Fetch fetch = coordinator.enter();
    const std::string now = list(fetch.now), ahead = list(fetch.ahead), freed = list(coordinator.leave());
    text += (use == 0 ? "" : " ") + (now.empty() ? "." : now) + (ahead.empty() ? "" : "+" + ahead) + (freed.empty() ? "" : "-" + freed);
  }
  EXPECT_EQ(coordinator.live(), 0);
  return text;
}

TEST(FetchCoordinator, WithoutPrefetchAndReuseEveryUseGathersAndFreesItsOwn) {
  EXPECT_EQ(walk(layers(3, 10), {0, kMuch, 0}), "0-0 1-1 2-2 2-2 1-1 0-0");
}

TEST(FetchCoordinator, TheDefaultsKeepASmallModelFromItsFirstUse) {  // specs/schedules.md 5.4, tests
  EXPECT_EQ(walk(layers(3, 10), {50'000'000, kMuch, kMuch}), "0+1,2 . . .-2 .-1 .-0");
  EXPECT_EQ(walk(layers(3, 10), {0, kMuch, kMuch}), "0 1 2 .-2 .-1 .-0");
}

TEST(FetchCoordinator, TheLastOnePrefetchedMayExceedTheBucket) {
  // 15 elements: the first takes 10, the second begins below 15 and ends at 20.
  EXPECT_EQ(walk(layers(5, 10), {15, kMuch, 0}), "0+1,2-0 .+3,4-1 .+1,0 . . .-4 .-3 .-2 .-1 .-0");
  EXPECT_EQ(walk(layers(5, 10), {1, kMuch, 0}), "0+1-0 .+2-1 .+3-2 .+4-3 .+3 .+2-4 .+1-3 .+0-2 .-1 .-0");
  EXPECT_EQ(walk(layers(5, 10), {20, kMuch, 0}).substr(0, 7), "0+1,2-0") << "20 is not less than 20";
}

TEST(FetchCoordinator, TheLiveLimitHoldsBackPrefetchAlone) {
  // Use 0 has 10 live: 25 - 10 = 15 remain, two parameters. Then 30 are live: nothing more until some are freed.
  EXPECT_EQ(walk(layers(6, 10), {kMuch, 25, 0}).substr(0, 20), "0+1,2-0 .+3-1 .+4-2 ");
  EXPECT_EQ(walk(layers(3, 10), {kMuch, 0, 0}), "0-0 1-1 2-2 2-2 1-1 0-0") << "what a use needs is gathered all the same";
}

TEST(FetchCoordinator, APassedOverUseKeepsItsParameter) {
  // At use 1 prefetch takes 2 (10), then passes over 2 again (there), then over 1 (there), and stops at 0: 10 are taken.
  const Model m = layers(3, 10);
  EXPECT_EQ(walk(m, {11, kMuch, 0}), "0+1,2-0 .+0 . .-2 .-1 .-0");
  // Bucket 10: use 0 takes 1 and use 1 takes 2 alone; use 2 passes over its own and 1's... 1 was freed: it is taken.
  EXPECT_EQ(walk(m, {10, kMuch, 0}), "0+1-0 .+2-1 .+1 .+0-2 .-1 .-0");
}

TEST(FetchCoordinator, ReuseIsMeasuredInElementsOfTheUsesBetween) {
  // Behind its forward, layer k of 3 is used again behind 2 (2 - k) uses of 10.
  const Model m = layers(3, 10);
  EXPECT_EQ(walk(m, {0, kMuch, 1}), "0-0 1-1 2 .-2 1-1 0-0");
  EXPECT_EQ(walk(m, {0, kMuch, 20}), "0-0 1-1 2 .-2 1-1 0-0") << "the use begins 20 elements behind";
  EXPECT_EQ(walk(m, {0, kMuch, 21}), "0-0 1 2 .-2 .-1 0-0");
  EXPECT_EQ(walk(m, {0, kMuch, 40}), "0-0 1 2 .-2 .-1 0-0");
  EXPECT_EQ(walk(m, {0, kMuch, 41}), "0 1 2 .-2 .-1 .-0");
}

TEST(FetchCoordinator, PersistentOnesAreThereAndNeverLive) {
  Model m = layers(2, 10);
  m.parameters[0].persistent = true;
  EXPECT_EQ(walk(m, {0, kMuch, 0}), ". 1-1 1-1 .");
  // They count in the distance all the same.
  m = layers(3, 10);
  m.parameters[2].persistent = true;
  EXPECT_EQ(walk(m, {0, kMuch, 20}), "0-0 1-1 . . 1-1 0-0");
  EXPECT_EQ(walk(m, {0, kMuch, 21}), "0-0 1 . . .-1 0-0");
}

TEST(FetchCoordinator, PartsOfAUseMayBePrefetched) {
  Model m;
  for (int i = 0; i < 6; ++i) m.parameters.push_back({10, false});
  m.uses = {{0}, {1, 2, 3}, {4, 5}};
  EXPECT_EQ(walk(m, {20, kMuch, 0}), "0+1,2-0 3+4,5-1,2,3 .-4,5");
}

TEST(FetchCoordinator, ASharedParameterIsGatheredOnceWhileItIsThere) {
  Model m;
  m.parameters = {{100, false}, {10, false}};
  m.uses = {{0}, {1}, {0, 1}, {0, 1}, {1}, {0}};
  EXPECT_EQ(walk(m, {0, kMuch, 0}), "0-0 1-1 0,1-0,1 0,1-0,1 1-1 0-0");
  EXPECT_EQ(walk(m, {0, kMuch, 10}), "0-0 1 0 .-0 .-1 0-0") << "1 lies between two uses of 0, and is as long as the distance";
  EXPECT_EQ(walk(m, {0, kMuch, 11}), "0 1 . . .-1 .-0");
}

TEST(FetchCoordinator, ATraceBeginsAnew) {
  const Model m = layers(2, 10);
  FetchCoordinator coordinator(m.parameters, {0, kMuch, kMuch});
  for (int round = 0; round < 2; ++round) {
    coordinator.begin(m.uses);
    std::size_t gathered = 0;
    for (std::size_t use = 0; use < m.uses.size(); ++use) gathered += coordinator.enter().now.size(), coordinator.leave();
    EXPECT_EQ(gathered, 2u);
  }
}

Model random_model(test::Random& random) {
  Model m;
  const std::size_t count = 1 + random.below(12), uses = 1 + random.below(20);
  for (std::size_t p = 0; p < count; ++p) m.parameters.push_back({static_cast<std::int64_t>(1 + random.below(100)), random.below(5) == 0});
  for (std::size_t u = 0; u < uses; ++u) {
    std::vector<std::size_t>& use = m.uses.emplace_back();
    for (std::size_t p = 0; p < count; ++p)
      if (random.below(4) == 0) use.push_back(p);
  }
  return m;
}

std::int64_t largest(const Model& m) {
  return std::accumulate(m.parameters.begin(), m.parameters.end(), std::int64_t{0},
                         [](auto most, auto p) { return std::max(most, p.elements); });
}
std::int64_t largest_use(const Model& m) {
  std::int64_t most = 0;
  for (const auto& use : m.uses)
    most = std::max(
        most, std::accumulate(use.begin(), use.end(), std::int64_t{0}, [&](auto sum, auto p) { return sum + m.parameters[p].elements; }));
  return most;
}

TEST(FetchCoordinatorOnRandomTraces, EveryUseFindsItsParametersAndAllAreFreedAtTheEnd) {
  test::Random random(3);
  for (int round = 0; round < 20'000; ++round) {
    const Model m = random_model(random);
    const FetchLimits limits{static_cast<std::int64_t>(random.below(200)), static_cast<std::int64_t>(random.below(400)),
                             random.below(2) == 0 ? 0 : static_cast<std::int64_t>(random.below(400))};
    FetchCoordinator coordinator(m.parameters, limits);
    coordinator.begin(m.uses);
    std::vector<bool> there(m.parameters.size());
    std::int64_t live = 0;
    for (const auto& use : m.uses) {
      const FetchCoordinator::Fetch fetch = coordinator.enter();
      std::int64_t ahead = 0;
      for (const auto* gathered : {&fetch.now, &fetch.ahead})
        for (const std::size_t p : *gathered) {
          EXPECT_FALSE(there[p] || m.parameters[p].persistent) << "gathered twice";
          there[p] = true;
          live += m.parameters[p].elements;
          if (gathered == &fetch.ahead) ahead += m.parameters[p].elements;
        }
      EXPECT_EQ(live, coordinator.live());
      EXPECT_LT(ahead, limits.prefetch + largest(m)) << "all but the last one are below the bucket";
      if (limits.reuse == 0) {
        EXPECT_LE(live, limits.live + largest_use(m) + largest(m));
      }
      for (const std::size_t p : use) EXPECT_TRUE(there[p] || m.parameters[p].persistent);
      for (const std::size_t p : coordinator.leave()) there[p] = false, live -= m.parameters[p].elements;
    }
    EXPECT_EQ(live, 0);
    EXPECT_EQ(std::count(there.begin(), there.end(), true), 0);
  }
}

// Whoever is gathered is used before it is freed: no gather is wasted.
TEST(FetchCoordinatorOnRandomTraces, NothingIsGatheredAheadInVain) {
  test::Random random(4);
  for (int round = 0; round < 5'000; ++round) {
    const Model m = random_model(random);
    FetchCoordinator coordinator(m.parameters,
                                 {static_cast<std::int64_t>(random.below(300)), 300, static_cast<std::int64_t>(random.below(300))});
    coordinator.begin(m.uses);
    std::vector<bool> waiting(m.parameters.size());
    for (const auto& use : m.uses) {
      for (const std::size_t p : coordinator.enter().ahead) waiting[p] = true;
      for (const std::size_t p : use) waiting[p] = false;
      for (const std::size_t p : coordinator.leave()) EXPECT_FALSE(waiting[p]);
    }
    EXPECT_EQ(std::count(waiting.begin(), waiting.end(), true), 0);
  }
}

}  // namespace
}  // namespace steptwin
