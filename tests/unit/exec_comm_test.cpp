// exec/comm/local: every collective against a formula, with whole numbers (exact in any order), and the rounding of 16-bit sums.
#include "exec/comm/local.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

using Values = std::vector<float>;

FlatView view_of(Values& values) { return FlatView({{reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size() * 4)}}); }
Bytes bytes_of(std::size_t elements) { return Bytes(static_cast<std::int64_t>(elements * 4)); }

// Member i holds i * 100 + k.
std::vector<Values> numbered(std::size_t members, std::size_t elements) {
  std::vector<Values> all(members, Values(elements));
  for (std::size_t i = 0; i < members; ++i)
    for (std::size_t k = 0; k < elements; ++k) all[i][k] = static_cast<float>(i * 100 + k);
  return all;
}
std::vector<MemberMemory> members_of(std::vector<Values>& in, std::vector<Values>& out) {
  std::vector<MemberMemory> members;
  for (std::size_t i = 0; i < in.size(); ++i) members.push_back({view_of(in[i]), view_of(out[i])});
  return members;
}

TEST(Comm, all_reduce_in_place_and_across_stretches) {
  std::vector<Values> data = numbered(3, 10000);
  std::vector<MemberMemory> members = members_of(data, data);
  // The second member's memory lies in two stretches, cut where no element ends a block.
  auto* const second = reinterpret_cast<std::byte*>(data[1].data());
  members[1].in = members[1].out = FlatView({{second, 4 * 777}, {second + 4 * 777, 4 * (10000 - 777)}});
  communicate(AllReduce{CommId(0), DType::Fp32, bytes_of(10000), AllReduce::Reduction::Sum}, members);
  for (const Values& values : data)
    for (std::size_t k = 0; k < values.size(); ++k) ASSERT_EQ(values[k], static_cast<float>(300 + 3 * k)) << k;
}

TEST(Comm, all_reduce_maximum) {
  std::vector<Values> data = {{1, 5, -2}, {4, 2, -7}};
  std::vector<MemberMemory> members = members_of(data, data);
  communicate(AllReduce{CommId(0), DType::Fp32, bytes_of(3), AllReduce::Reduction::Max}, members);
  EXPECT_EQ(data[0], (Values{4, 5, -2}));
  EXPECT_EQ(data[1], data[0]);
}

TEST(Comm, reduce_scatter_gives_each_member_its_shard) {
  std::vector<Values> in = numbered(2, 8), out(2, Values(4));
  std::vector<MemberMemory> members = members_of(in, out);
  communicate(ReduceScatter{CommId(0), DType::Fp32, bytes_of(8)}, members);
  EXPECT_EQ(out[0], (Values{100, 102, 104, 106}));
  EXPECT_EQ(out[1], (Values{108, 110, 112, 114}));
}

// 16 bytes over 5 members: 4 each, none left for the last.
TEST(Comm, all_gather_with_a_short_last_shard) {
  std::vector<Values> in = {{0}, {10}, {20}, {30}, {}}, out(5, Values(4));
  std::vector<MemberMemory> members = members_of(in, out);
  communicate(AllGather{CommId(0), DType::Fp32, bytes_of(4)}, members);
  for (const Values& values : out) EXPECT_EQ(values, (Values{0, 10, 20, 30}));
}

TEST(Comm, reduce_scatter_then_all_gather_equals_all_reduce) {
  std::vector<Values> reduced = numbered(4, 64), in = numbered(4, 64), shards(4, Values(16)), gathered(4, Values(64));
  std::vector<MemberMemory> a = members_of(reduced, reduced), b = members_of(in, shards), c = members_of(shards, gathered);
  communicate(AllReduce{CommId(0), DType::Fp32, bytes_of(64), AllReduce::Reduction::Sum}, a);
  communicate(ReduceScatter{CommId(0), DType::Fp32, bytes_of(64)}, b);
  communicate(AllGather{CommId(0), DType::Fp32, bytes_of(64)}, c);
  EXPECT_EQ(gathered, reduced);
}

TEST(Comm, broadcast_and_all_to_all) {
  std::vector<Values> data = numbered(3, 3);
  std::vector<MemberMemory> members = members_of(data, data);
  communicate(AllToAll{CommId(0), DType::Fp32, bytes_of(3)}, members);
  EXPECT_EQ(data[0], (Values{0, 100, 200}));
  EXPECT_EQ(data[2], (Values{2, 102, 202}));
  communicate(Broadcast{CommId(0), DType::Fp32, bytes_of(3), Peer{1, false}}, members);
  EXPECT_EQ(data[0], (Values{1, 101, 201}));
  EXPECT_EQ(data[2], data[1]);
}

TEST(Comm, sums_of_bf16_are_rounded_once) {
  // 256 + 1 + 1 in bf16 (8 bits): rounded at every step it stays 256, in fp32 with one rounding it is 258.
  const std::uint16_t big = 0x4380, one = 0x3f80;
  std::uint16_t sum = 0;
  combine(reinterpret_cast<std::byte*>(&sum),
          {reinterpret_cast<const std::byte*>(&big), reinterpret_cast<const std::byte*>(&one), reinterpret_cast<const std::byte*>(&one)}, 1, DType::Bf16,
          Combine::Sum);
  EXPECT_EQ(sum, 0x4381);  // 258
}

TEST(Comm, halves_survive_the_round_trip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7c00) == 0x7c00 && (half & 0x3ff) != 0) continue;  // NaN
    std::uint16_t back = 1;
    combine(reinterpret_cast<std::byte*>(&back), {reinterpret_cast<const std::byte*>(&half)}, 1, DType::Fp16, Combine::Sum);
    ASSERT_EQ(back, half);
  }
}

TEST(Comm, memory_that_is_too_small_is_refused) {
  std::vector<Values> in = numbered(2, 4), out(2, Values(3));
  std::vector<MemberMemory> members = members_of(in, out);
  EXPECT_THROW(communicate(AllReduce{CommId(0), DType::Fp32, bytes_of(4), AllReduce::Reduction::Sum}, members), EnvironmentError);
}

}  // namespace
}  // namespace steptwin
