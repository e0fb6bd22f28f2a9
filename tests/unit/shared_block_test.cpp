// Layers that share their parameters (model.layers_per_block): BMTrain's block that is used again (specs/bmtrain.md B-F10). While a block is
// entered, entering it again does nothing, and the outermost leave reduces.
#include <gtest/gtest.h>

#include <numeric>

#include "schedule/base/error.h"
#include "schedule/ir/liveness.h"
#include "schedule/model/partition.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::compiled;
using test::load_program;
using test::problems_of;
using Case = test::ZeroCase;

Schedule shared(const Case& c, const char* layers_per_block) { return compiled(c, {{"model.layers_per_block", layers_per_block}}); }

TEST(SharedBlock, IsGatheredOnceForItsLayersAndReducedBehindTheLastOfThem) {
  Case c;
  c.layers = 4;
  EXPECT_EQ(load_program(shared(c, "2")), "AG0 AG2 | AG2 Z2 AG0 Z0 RS2 RS0");
  EXPECT_EQ(load_program(shared(c, "4")), "AG0 | AG0 Z0 RS0");
  EXPECT_EQ(load_program(shared(c, "3")), "AG0 AG3 | AG3 Z3 AG0 Z0 RS3 RS0") << "the last block is short";
  c.zero = R"("level": 3, "ends": "whole", "form": "block")";
  EXPECT_EQ(load_program(shared(c, "2")), "AG0 AG2 | AG2 Z2 RS2 AG0 Z0 RS0");
  c.zero = R"("level": 3, "ends": "whole", "reshard": false)";
  EXPECT_EQ(load_program(shared(c, "2")), "AG0 AG2 | Z2 Z0 RS2 RS0");
}

TEST(SharedBlock, HoldsOneCopyOfParametersGradientsAndStates) {
  Case c;
  c.layers = 4;
  for (const char* zero : {R"("level": 0)", R"("level": 2, "ends": "whole")", R"("level": 3, "ends": "whole")"}) {
    c.zero = zero;
    Case two = c;
    two.layers = 2;
    for (const Space space : {Space::Device, Space::Pageable})
      EXPECT_EQ(resident_bytes(shared(c, "2").programs[0], space), resident_bytes(compiled(two).programs[0], space)) << zero;
  }
}

TEST(SharedBlock, HasNoProblemInAnyCombination) {
  for (const char* zero : {R"("level": 0)", R"("level": 1)", R"("level": 2)", R"("level": 3)", R"("level": 3, "form": "block")",
                           R"("level": 3, "form": "fsdp")", R"("level": 3, "form": "deepspeed")",
                           R"("level": 3, "form": "deepspeed", "max_reuse_distance": 0, "param_persistence_threshold": 0)",
                           R"("level": 3, "reshard": false)"})
    for (const char* recompute : {"none", "full", "sqrt"})
      for (const int pp : {1, 2})
        for (const int micro_batches : {1, 3}) {
          Case c;
          c.zero = zero, c.recompute = recompute, c.pp = pp, c.micro_batches = micro_batches, c.layers = 5;
          if (pp > 1 && c.recompute == "sqrt") continue;
          EXPECT_EQ(problems_of(shared(c, "2")), "") << zero << " " << recompute << " " << pp << " " << micro_batches;
        }
}

ModelShape model(std::int64_t layers, std::int64_t layers_per_block) {
  ModelShape shape;
  shape.layers = layers, shape.layers_per_block = layers_per_block;
  return shape;
}

TEST(Partition, GivesTheRemainderToTheFirstStages) {  // BM-09
  using Layers = std::vector<std::int64_t>;
  EXPECT_EQ(default_partition(model(10, 1), 4), (Layers{3, 3, 2, 2}));
  EXPECT_EQ(default_partition(model(7, 1), 3), (Layers{3, 2, 2}));
  EXPECT_EQ(default_partition(model(3, 1), 4), (Layers{1, 1, 1, 0}));
  EXPECT_EQ(default_partition(model(10, 2), 4), (Layers{4, 2, 2, 2}));
  EXPECT_EQ(default_partition(model(7, 2), 3), (Layers{4, 2, 1}));
  EXPECT_EQ(default_partition(model(4, 4), 2), (Layers{4, 0}));
}

TEST(Partition, KeepsTheLayersOfABlockTogether) {
  for (std::int64_t layers = 1; layers <= 12; ++layers)
    for (std::int64_t block = 1; block <= layers; ++block)
      for (std::int64_t stages = 1; stages <= 5; ++stages) {
        const std::vector<std::int64_t> parts = default_partition(model(layers, block), stages);
        EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}), layers);
        EXPECT_FALSE(stage_inside_block(model(layers, block), parts));
      }
  EXPECT_EQ(stage_inside_block(model(6, 2), {2, 1, 3}), 2u);
  EXPECT_EQ(stage_inside_block(model(6, 2), {3, 3}), 1u);
}

}  // namespace
}  // namespace steptwin
