// Conversions and sums of 16-bit types against LibTorch's, bit for bit; initial values.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "exec/ops/compute.h"
#include "schedule/base/error.h"

namespace steptwin::test {
namespace {

at::ScalarType scalar(DType type) { return type == DType::Bf16 ? at::kBFloat16 : at::kHalf; }
std::byte* bytes(const at::Tensor& t) { return static_cast<std::byte*>(t.data_ptr()); }

// Every pattern of 16 bits.
at::Tensor all_patterns(DType type) {
  const at::Tensor t = at::empty({65536}, at::TensorOptions(scalar(type)));
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(bytes(t) + 2 * i, &bits, 2);
  }
  return t;
}

// fp32 values around every narrow value and every midpoint between two.
at::Tensor hard_values(DType type) {
  const at::Tensor wide = all_patterns(type).to(at::kFloat), next = wide.roll(-1);
  const at::Tensor middle = (wide.to(at::kDouble) + next.to(at::kDouble)).div(2).to(at::kFloat);
  const at::Tensor infinity = at::full_like(wide, INFINITY);
  std::vector<at::Tensor> all = {wide, middle, at::nextafter(middle, infinity), at::nextafter(middle, -infinity), at::randn({50001}) * 300};
  at::Tensor t = at::cat(all);
  return t.index({at::isfinite(t)}).contiguous();
}

class Narrow : public testing::TestWithParam<DType> {};

TEST_P(Narrow, WidensAsLibTorch) {
  const at::Tensor patterns = all_patterns(GetParam());
  at::Tensor ours = at::empty({65536});
  convert(bytes(ours), DType::Fp32, bytes(patterns), GetParam(), 65536);
  EXPECT_TRUE(at::allclose(ours, patterns.to(at::kFloat), 0, 0, true));
}

TEST_P(Narrow, RoundsAsLibTorch) {
  const at::Tensor values = hard_values(GetParam());
  const at::Tensor ours = at::empty_like(values, at::TensorOptions(scalar(GetParam())));
  convert(bytes(ours), GetParam(), bytes(values), DType::Fp32, values.numel());
  EXPECT_TRUE(at::equal(ours.to(at::kFloat), values.to(scalar(GetParam())).to(at::kFloat)));
}

TEST_P(Narrow, NotANumberStaysOne) {
  const float nan = std::nanf("");
  std::byte narrow[2];
  float back = 0;
  convert(narrow, GetParam(), reinterpret_cast<const std::byte*>(&nan), DType::Fp32, 1);
  convert(reinterpret_cast<std::byte*>(&back), DType::Fp32, narrow, GetParam(), 1);
  EXPECT_TRUE(std::isnan(back));
}

TEST_P(Narrow, AddsInFp32AndRoundsOnce) {
  const at::Tensor a = at::randn({1027}).to(scalar(GetParam())), b = at::randn({1027}).to(scalar(GetParam()));
  const at::Tensor expected = (a.to(at::kFloat) + b.to(at::kFloat)).to(scalar(GetParam()));
  add_into(bytes(a), bytes(b), a.numel(), GetParam());
  EXPECT_TRUE(at::equal(a, expected));
}

INSTANTIATE_TEST_SUITE_P(Types, Narrow, testing::Values(DType::Bf16, DType::Fp16));

TEST(Elements, IntegersAddExactly) {
  std::int64_t a[] = {1, -5, std::int64_t{1} << 60}, b[] = {2, 7, 1};
  add_into(reinterpret_cast<std::byte*>(a), reinterpret_cast<const std::byte*>(b), 3, DType::Int64);
  EXPECT_EQ(a[0], 3);
  EXPECT_EQ(a[1], 2);
  EXPECT_EQ(a[2], (std::int64_t{1} << 60) + 1);
  EXPECT_THROW(convert(reinterpret_cast<std::byte*>(a), DType::Fp32, reinterpret_cast<const std::byte*>(b), DType::Int64, 1),
               InternalError);
}

std::vector<float> draw(const std::string& name, std::uint64_t seed, std::int64_t elements, DType type = DType::Fp32) {
  std::vector<std::byte> raw(static_cast<std::size_t>(elements * size_of(type)));
  initialise_parameter(name, {"any", type, {elements}, Bytes(0)}, raw.data(), seed);
  std::vector<float> values(static_cast<std::size_t>(elements));
  convert(reinterpret_cast<std::byte*>(values.data()), DType::Fp32, raw.data(), type, elements);
  return values;
}

// Of n = 1e5 draws the mean deviates by s/sqrt(n), the deviation by s/sqrt(2n); five times that.
TEST(InitialValues, AreNormal) {
  const std::vector<float> values = draw("layers.0.attn.q.weight", 3, 100000);
  double sum = 0, square = 0;
  int beyond_two = 0;
  for (const float v : values) sum += v, square += static_cast<double>(v) * v, beyond_two += std::abs(v) > 0.04 ? 1 : 0;
  EXPECT_NEAR(sum / 1e5, 0, 5 * 0.02 / std::sqrt(1e5));
  EXPECT_NEAR(std::sqrt(square / 1e5), 0.02, 5 * 0.02 / std::sqrt(2e5));
  EXPECT_NEAR(beyond_two / 1e5, 0.0455, 0.005);  // of a normal distribution
}

TEST(InitialValues, DependOnNameAndSeedAlone) {
  const std::vector<float> a = draw("x.weight", 1, 1000);
  EXPECT_EQ(a, draw("x.weight", 1, 1000));
  EXPECT_NE(a, draw("x.weight", 2, 1000));
  EXPECT_NE(a, draw("y.weight", 1, 1000));
  std::vector<float> front = draw("x.weight", 1, 300);  // whatever the size
  EXPECT_TRUE(std::equal(front.begin(), front.end(), a.begin()));
}

TEST(InitialValues, NarrowOnesAreRoundedWideOnes) {
  const std::vector<float> wide = draw("x.weight", 1, 500), narrow = draw("x.weight", 1, 500, DType::Bf16);
  for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_LE(std::abs(narrow[i] - wide[i]), std::abs(wide[i]) / 256);
}

TEST(InitialValues, BiasesAreZeroAndGainsOne) {
  for (const float v : draw("layers.0.mlp.up.bias", 1, 9)) EXPECT_EQ(v, 0);
  for (const float v : draw("layers.0.mlp.norm.bias", 1, 9)) EXPECT_EQ(v, 0);
  for (const float v : draw("head.norm.weight", 1, 9)) EXPECT_EQ(v, 1);
}

// The same on every platform and in every release: a stored run can be repeated. Values worked out apart (in Python, from the rule in
// initial_values.cpp: sums of eight 16-bit numbers 237451, 277552, 217475).
TEST(InitialValues, AreFixed) {
  const std::vector<float> values = draw("embed.token.weight", 1, 3);
  EXPECT_EQ(values, (std::vector<float>{-0.009227821603417397f, 0.005760427098721266f, -0.016694100573658943f}));
}

TEST(InitialValues, ATiedCopyDrawsTheTable) {
  Schedule schedule;
  EXPECT_EQ(drawn_as(schedule, "head.weight"), "head.weight");
  schedule.communicators.push_back({});
  schedule.communicators.back().name = "pp.tied";
  EXPECT_EQ(drawn_as(schedule, "head.weight"), "embed.token.weight");
  EXPECT_EQ(drawn_as(schedule, "head.norm.weight"), "head.norm.weight");
}

}  // namespace
}  // namespace steptwin::test
