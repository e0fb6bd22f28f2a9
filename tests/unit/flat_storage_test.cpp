// Flat groups and their shards: specs/bmtrain.md 2 and BM-01, BM-02, BM-03.
#include "schedule/model/flat_storage.h"

#include <gtest/gtest.h>

#include "schedule/ir/schedule.h"

namespace steptwin {
namespace {

// BMTrain's example block: LN w,b; q, k, v, out w,b; LN w,b; ff-in w,b; ff-out w,b.
std::vector<StoredParameter> example_block(std::int64_t d, std::int64_t ff, DType dtype) {
  std::vector<StoredParameter> parameters;
  const auto add = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    parameters.push_back({name + ".w", in > 0 ? std::vector<std::int64_t>{out, in} : std::vector<std::int64_t>{out}, dtype});
    parameters.push_back({name + ".b", {out}, dtype});
  };
  add("ln1", d, 0);
  for (const char* name : {"q", "k", "v", "out"}) add(name, d, d);
  add("ln2", d, 0);
  add("ff_in", ff, d);
  add("ff_out", d, ff);
  return parameters;
}

FlatGroup example_group(std::int64_t d, std::int64_t ff, DType dtype) { return flat_groups(example_block(d, ff, dtype)).at(0); }

Layout layout_of(const FlatGroup& group) {
  Layout layout;
  for (std::size_t i = 0; i < group.parameters.size(); ++i)
    layout.tensors.push_back(
        {group.parameters[i].name, group.dtype, group.parameters[i].shape, Bytes(group.offsets[i] * size_of(group.dtype))});
  return layout;
}

struct Row {
  std::int64_t d, ff;
  DType dtype;
  std::int64_t total;
  std::vector<std::int64_t> partitions;  // W = 1, 3, 8, 24, 32
  std::vector<std::int64_t> gathered;    // W = 3, 8, 24
};

TEST(FlatStorage, SizesOfTheExampleBlocks) {  // BM-01
  const Row rows[] = {
      {2560, 8192, DType::Fp16, 68188672, {68188672, 22729558, 8523584, 2841195, 2130896}, {68188674, 68188672, 68188680}},
      {5120, 20480, DType::Fp16, 314639360, {314639360, 104879787, 39329920, 13109974, 9832480}, {314639361, 314639360, 314639376}},
      {100, 400, DType::Fp16, 124160, {124160, 41387, 15520, 5174, 3880}, {124161, 124160, 124176}},
      {100, 400, DType::Fp32, 122240, {122240, 40747, 15280, 5094, 3820}, {122241, 122240, 122256}},
  };
  const std::int64_t ranks[] = {1, 3, 8, 24, 32};
  for (const Row& row : rows) {
    const FlatGroup group = example_group(row.d, row.ff, row.dtype);
    EXPECT_EQ(group.total, row.total);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(sharding_of(group, ranks[i]).partition, row.partitions[i]) << row.d << " W " << ranks[i];
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_EQ(sharding_of(group, ranks[i + 1]).gathered, row.gathered[i]) << row.d << " W " << ranks[i + 1];
  }
}

TEST(FlatStorage, OffsetsOfTheSmallExample) {  // BM-02
  EXPECT_EQ(example_group(100, 400, DType::Fp16).offsets, (std::vector<std::int64_t>{0, 256, 512, 10752, 11008, 21248, 21504, 31744, 32000,
                                                                                     42240, 42496, 42752, 43008, 83200, 83712, 123904}));
  EXPECT_EQ(example_group(100, 400, DType::Fp32).offsets, (std::vector<std::int64_t>{0, 128, 256, 10368, 10496, 20608, 20736, 30848, 30976,
                                                                                     41088, 41216, 41344, 41472, 81536, 82048, 122112}));
}

using Piece = std::tuple<std::string, std::int64_t, std::int64_t>;  // parameter, start in the shard, elements

std::vector<Piece> pieces_of(const FlatGroup& group, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t size = size_of(group.dtype), partition = sharding_of(group, ranks).partition;
  std::vector<Piece> out;
  for (const TensorPiece& piece : tensor_pieces(layout_of(group), {rank * partition * size, partition * size}))
    out.emplace_back(group.parameters[piece.tensor].name, piece.at / size, piece.elements);
  return out;
}

TEST(FlatStorage, PiecesOfTheSmallExampleOnThreeRanks) {  // BM-03
  const FlatGroup group = example_group(100, 400, DType::Fp16);
  EXPECT_EQ(pieces_of(group, 3, 0), (std::vector<Piece>{{"ln1.w", 0, 100},
                                                        {"ln1.b", 256, 100},
                                                        {"q.w", 512, 10000},
                                                        {"q.b", 10752, 100},
                                                        {"k.w", 11008, 10000},
                                                        {"k.b", 21248, 100},
                                                        {"v.w", 21504, 10000},
                                                        {"v.b", 31744, 100},
                                                        {"out.w", 32000, 9387}}));
  EXPECT_EQ(
      pieces_of(group, 3, 1),
      (std::vector<Piece>{{"out.w", 0, 613}, {"out.b", 853, 100}, {"ln2.w", 1109, 100}, {"ln2.b", 1365, 100}, {"ff_in.w", 1621, 39766}}));
  EXPECT_EQ(pieces_of(group, 3, 2),
            (std::vector<Piece>{{"ff_in.w", 0, 234}, {"ff_in.b", 426, 400}, {"ff_out.w", 938, 40000}, {"ff_out.b", 41130, 100}}));
}

TEST(FlatStorage, BiasesTrainedAloneLieInAGroupOfTheirOwn) {  // B-F16; as BM-02 and BM-03, by hand
  std::vector<StoredParameter> parameters = example_block(100, 400, DType::Fp16);
  for (StoredParameter& parameter : parameters) parameter.requires_grad = parameter.name.ends_with(".b");
  const std::vector<FlatGroup> groups = flat_groups(parameters);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].key, "fp16_nograd") << "ln1.w comes first";
  EXPECT_EQ(groups[1].key, "fp16_grad");
  EXPECT_EQ(groups[0].offsets, (std::vector<std::int64_t>{0, 256, 10496, 20736, 30976, 41216, 41472, 81664}));
  EXPECT_EQ(groups[1].offsets, (std::vector<std::int64_t>{0, 256, 512, 768, 1024, 1280, 1536, 2048}));
  EXPECT_EQ(sharding_of(groups[0], 3).partition, 40619) << "of 121,856";
  EXPECT_EQ(sharding_of(groups[0], 3).gathered, 121857);
  EXPECT_EQ(sharding_of(groups[1], 3).partition, 768) << "of 2,304";
  EXPECT_EQ(
      pieces_of(groups[0], 3, 0),
      (std::vector<Piece>{{"ln1.w", 0, 100}, {"q.w", 256, 10000}, {"k.w", 10496, 10000}, {"v.w", 20736, 10000}, {"out.w", 30976, 9643}}));
  EXPECT_EQ(pieces_of(groups[0], 3, 1), (std::vector<Piece>{{"out.w", 0, 357}, {"ln2.w", 597, 100}, {"ff_in.w", 853, 39766}}));
  EXPECT_EQ(pieces_of(groups[0], 3, 2), (std::vector<Piece>{{"ff_in.w", 0, 234}, {"ff_out.w", 426, 40000}}));
  EXPECT_EQ(pieces_of(groups[1], 3, 0), (std::vector<Piece>{{"ln1.b", 0, 100}, {"q.b", 256, 100}, {"k.b", 512, 100}}));
  EXPECT_EQ(pieces_of(groups[1], 3, 1), (std::vector<Piece>{{"v.b", 0, 100}, {"out.b", 256, 100}, {"ln2.b", 512, 100}}));
  EXPECT_EQ(pieces_of(groups[1], 3, 2), (std::vector<Piece>{{"ff_in.b", 0, 400}, {"ff_out.b", 512, 100}}));
}

TEST(FlatStorage, PiecesTileEveryParameterOnceAndPaddingIsLessThanTheRanks) {
  for (const std::int64_t d : {1, 7, 100, 129})
    for (const DType dtype : {DType::Fp32, DType::Bf16})
      for (const std::int64_t ranks : {1, 2, 3, 5, 8, 24, 1000}) {
        const FlatGroup group = example_group(d, 3 * d + 1, dtype);
        const Sharding cut = sharding_of(group, ranks);
        EXPECT_GE(cut.gathered - group.total, 0);
        EXPECT_LT(cut.gathered - group.total, ranks);
        std::vector<std::int64_t> next(group.parameters.size());
        const std::int64_t size = size_of(dtype);
        for (std::int64_t rank = 0; rank < ranks; ++rank)
          for (const TensorPiece& piece : tensor_pieces(layout_of(group), {rank * cut.partition * size, cut.partition * size})) {
            EXPECT_EQ(piece.first_element, next[piece.tensor]);
            next[piece.tensor] += piece.elements;
          }
        for (std::size_t i = 0; i < next.size(); ++i) EXPECT_EQ(next[i], group.parameters[i].elements());
      }
}

TEST(FlatStorage, GroupsByTypeGradientAndName) {
  const std::vector<FlatGroup> groups = flat_groups({{"a", {3}, DType::Bf16},
                                                     {"b", {5}, DType::Fp32},
                                                     {"c", {7}, DType::Bf16, false},
                                                     {"d", {600}, DType::Bf16, true, "tp"},
                                                     {"e", {2, 2}, DType::Bf16},
                                                     {"f", {1}, DType::Bf16, false, "tp"}});
  std::vector<std::string> keys;
  for (const FlatGroup& group : groups) keys.push_back(group.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"bf16_grad", "fp32_grad", "bf16_nograd", "bf16_grad_g_tp", "bf16_nograd_g_tp"}));
  EXPECT_EQ(groups[0].offsets, (std::vector<std::int64_t>{0, 256}));
  EXPECT_EQ(groups[0].total, 512);
  EXPECT_EQ(groups[1].total, 128);
  EXPECT_EQ(groups[3].total, 768);
}

TEST(FlatStorage, AStandAloneParameterIsCutWithoutAlignment) {
  const FlatGroup group = stand_alone_group({"embed", {97, 10}, DType::Bf16});
  EXPECT_EQ(group.total, 970);
  EXPECT_EQ(sharding_of(group, 4).partition, 243);
  EXPECT_EQ(sharding_of(group, 4).gathered, 972);
  EXPECT_EQ(sharding_of(stand_alone_group({"norm", {2}, DType::Bf16}), 8).partition, 1) << "six ranks hold padding";
}

}  // namespace
}  // namespace steptwin
