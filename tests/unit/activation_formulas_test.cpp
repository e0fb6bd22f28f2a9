// The printed values of specs/memory.md T-15, T-30, T-31, T-34..T-39, T-48 and T-51, to the last printed digit.
#include <gtest/gtest.h>

#include <cmath>

#include "schedule/model/activation_formulas.h"

namespace steptwin {
namespace {

constexpr double kMiB = 1048576, kGiB = 1073741824;

// Half a unit of the last of `digits` printed decimals (and the rounding of a value that lies just on it).
void expect_printed(double value, double printed, int digits) { EXPECT_NEAR(value, printed, 0.5000001 * std::pow(10, -digits)); }

constexpr ActivationFormula kGpt3{2048, 1, 12288, 96, 8};
constexpr ActivationFormula k22B{2048, 4, 6144, 64, 8};

TEST(Korthikanti, T30) {
  EXPECT_EQ(korthikanti_bytes_none(kGpt3), 2736 * kMiB);
  EXPECT_EQ(korthikanti_bytes_tensor(kGpt3), 552 * kMiB);
  EXPECT_EQ(korthikanti_bytes_tensor_sequence(kGpt3), 342 * kMiB);
  EXPECT_EQ(korthikanti_bytes_selective(kGpt3), 312 * kMiB);
  EXPECT_EQ(korthikanti_bytes_sequence_selective(kGpt3), 102 * kMiB);
  EXPECT_EQ(korthikanti_bytes_full(kGpt3), 48 * kMiB);
  EXPECT_EQ(korthikanti_bytes_full_sharded(kGpt3), 6 * kMiB);
}

TEST(Korthikanti, T31) {
  EXPECT_NEAR(korthikanti_bytes_none(k22B), 6752 * kMiB, 1);  // 5as/h is not exact in binary
  EXPECT_NEAR(korthikanti_bytes_tensor(k22B), 1264 * kMiB, 1);
  EXPECT_NEAR(korthikanti_bytes_tensor_sequence(k22B), 844 * kMiB, 1);
  EXPECT_EQ(korthikanti_bytes_selective(k22B), 624 * kMiB);
  EXPECT_EQ(korthikanti_bytes_sequence_selective(k22B), 204 * kMiB);
  EXPECT_EQ(korthikanti_bytes_full(k22B), 96 * kMiB);
  EXPECT_EQ(korthikanti_bytes_full_sharded(k22B), 12 * kMiB);
}

TEST(Korthikanti, T34FirstStage) {
  EXPECT_NEAR(first_stage_bytes(korthikanti_bytes_tensor(k22B), 48, 1, 1) / kGiB, 59.25, 1e-9);
  EXPECT_NEAR(first_stage_bytes(korthikanti_bytes_sequence_selective(k22B), 48, 1, 1) / kGiB, 9.5625, 1e-9);
  EXPECT_NEAR(first_stage_bytes(korthikanti_bytes_tensor(kGpt3), 96, 8, 3) / kGiB, 66.84375, 1e-9);
  EXPECT_NEAR(first_stage_bytes(korthikanti_bytes_sequence_selective(kGpt3), 96, 8, 3) / kGiB, 12.3515625, 1e-9);
}

TEST(Korthikanti, T35States) {
  EXPECT_NEAR(korthikanti_state_bytes(48, 6144, 8, 1) / kGiB, 45.5625, 1e-9);
  EXPECT_NEAR(korthikanti_state_bytes(96, 12288, 8, 8) / kGiB, 45.5625, 1e-9);
}

void expect_percent(const ActivationFormula& f, double sequence, double selective, double both, double full) {
  const double base = korthikanti_bytes_tensor(f) / 100;
  expect_printed(korthikanti_bytes_tensor_sequence(f) / base, sequence, 2);
  expect_printed(korthikanti_bytes_selective(f) / base, selective, 2);
  expect_printed(korthikanti_bytes_sequence_selective(f) / base, both, 2);
  expect_printed(korthikanti_bytes_full(f) / base, full, 2);
}

TEST(Korthikanti, T36Percentages) {
  expect_percent(k22B, 66.77, 49.37, 16.14, 7.59);
  expect_percent(kGpt3, 61.96, 56.52, 18.48, 8.70);
}

TEST(Llama, T37) {
  const LlamaFormula llama2_7b{4096, 1, 4096, 32, 32, 128, 11008, 1, 1}, llama3_8b{8192, 1, 4096, 32, 8, 128, 14336, 1, 1};
  const LlamaFormula llama3_70b{8192, 1, 8192, 64, 8, 128, 28672, 1, 1}, llama3_405b{8192, 1, 16384, 128, 8, 128, 53248, 1, 1};
  EXPECT_EQ(llama_layer_bytes(llama2_7b), 131720.0 * 4096);
  EXPECT_EQ(llama_layer_bytes(llama3_8b), 139400.0 * 8192);
  EXPECT_EQ(llama_layer_bytes(llama3_70b), 274696.0 * 8192);
  EXPECT_EQ(llama_layer_bytes(llama3_405b), 520712.0 * 8192);
  expect_printed(llama_layer_bytes(llama2_7b) / kMiB, 514.53, 2);
  expect_printed(llama_layer_bytes(llama3_8b) / kMiB, 1089.06, 2);
  expect_printed(llama_layer_bytes({8192, 1, 4096, 32, 8, 128, 14336, 2, 2}) / kMiB, 544.53, 2);
  expect_printed(llama_layer_bytes(llama3_70b) / kMiB, 2146.06, 2);
  expect_printed(llama_layer_bytes({8192, 1, 8192, 64, 8, 128, 28672, 8, 8}) / kMiB, 268.26, 2);
  expect_printed(llama_layer_bytes(llama3_405b) / kMiB, 4068.06, 2);
}

MegatronFormula megatron_gpt3() {
  MegatronFormula f;
  f.layers = 96; f.hidden = 12288; f.ffn = 4 * 12288; f.heads = f.kv_heads = 96; f.head_size = 128; f.vocabulary = 51200;
  f.tied = true; f.sequence = 2048; f.micro_batches = 64; f.tensor_parallel = 8; f.stages = 8;
  return f;
}

MegatronFormula megatron_llama(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t kv_heads, std::int64_t vocabulary) {
  MegatronFormula f;
  f.layers = layers; f.hidden = hidden; f.ffn = ffn; f.heads = hidden / 128; f.kv_heads = kv_heads; f.head_size = 128;
  f.vocabulary = vocabulary;
  f.gate_factor = 1.5; f.norm_vectors = 1; f.micro_batches = 64;
  return f;
}

TEST(Megatron, T15Parameters) {
  EXPECT_EQ(megatron_parameters(megatron_gpt3()), 174580064256.0);
  EXPECT_EQ(megatron_shard_parameters(megatron_gpt3()), 2796626304.0);
}

TEST(Megatron, T38Layers) {
  MegatronFormula llama2_7b = megatron_llama(32, 4096, 11008, 32, 32000), llama2_70b = megatron_llama(80, 8192, 28672, 8, 32000);
  MegatronFormula llama3_8b = megatron_llama(32, 4096, 14336, 8, 128256);
  llama2_7b.sequence = llama2_70b.sequence = 4096;
  llama3_8b.sequence = 8192;
  llama2_70b.tensor_parallel = 8;
  llama3_8b.tensor_parallel = 2;
  expect_printed(megatron_layer_activation_bytes(llama2_7b) / kMiB, 460.0, 1);
  expect_printed(megatron_layer_activation_bytes(llama2_70b) / kMiB, 128.0, 1);
  expect_printed(megatron_layer_activation_bytes(llama3_8b) / kMiB, 512.0, 1);
  expect_printed(megatron_layer_activation_bytes(megatron_gpt3()) / kMiB, 102.0, 1);
}

void expect_report(const MegatronFormula& f, double state, double activation, double total) {
  expect_printed(megatron_state_bytes(f) / kMiB, state, 2);
  expect_printed(megatron_activation_bytes(f) / kMiB, activation, 2);
  expect_printed((megatron_state_bytes(f) + megatron_activation_bytes(f)) / kMiB, total, 2);
}

TEST(Megatron, T39Gpt3) {
  MegatronFormula interleaved = megatron_gpt3();
  interleaved.chunks = 3;
  expect_report(interleaved, 48007.27, 12679.02, 60686.29);
  MegatronFormula distributed = megatron_gpt3();
  distributed.bytes_per_parameter = 6 + 12.0 / 16;
  expect_report(distributed, 18002.73, 9816.02, 27818.74);
}

TEST(Megatron, T39Llama) {
  MegatronFormula llama2_7b = megatron_llama(32, 4096, 11008, 32, 32000);
  llama2_7b.sequence = 4096;
  llama2_7b.bytes_per_parameter = 6 + 12.0 / 8;
  expect_report(llama2_7b, 48196.90, 15300.03, 63496.94);
  MegatronFormula llama2_70b = megatron_llama(80, 8192, 28672, 8, 32000);
  llama2_70b.sequence = 4096;
  llama2_70b.tensor_parallel = 8;
  llama2_70b.stages = 4;
  llama2_70b.bytes_per_parameter = 6 + 12.0 / 4;
  expect_report(llama2_70b, 18641.60, 10256.02, 28897.62);
  MegatronFormula llama3_8b = megatron_llama(32, 4096, 14336, 8, 128256);
  llama3_8b.sequence = 8192;
  llama3_8b.tensor_parallel = 2;
  llama3_8b.bytes_per_parameter = 6 + 12.0 / 4;
  expect_report(llama3_8b, 34462.14, 18468.03, 52930.17);
}

TEST(Megatron, FewMicroBatchesScaleThePipeline) {
  MegatronFormula f = megatron_gpt3();
  const double full = megatron_activation_bytes(f);
  f.micro_batches = 2;
  EXPECT_DOUBLE_EQ(megatron_activation_bytes(f), full / 4);  // min(1, m/p)
}

TEST(ZeroBubble, T48) {
  const ActivationFormula small{1024, 6, 2304, 24, 1}, large{1024, 3, 4096, 32, 1};
  EXPECT_EQ(zero_bubble_activation_bytes(small), 1179 * kMiB);
  EXPECT_EQ(zero_bubble_weight_grad_bytes(small), 432 * kMiB);
  EXPECT_EQ(zero_bubble_activation_bytes(large), 888 * kMiB);
  EXPECT_EQ(zero_bubble_weight_grad_bytes(large), 384 * kMiB);
}

void expect_logits(const LogitsBytes& bytes, double bf16, double fp32, double full) {
  expect_printed(bytes.bf16 / kGiB, bf16, 3);
  expect_printed(bytes.fp32 / kGiB, fp32, 3);
  expect_printed(bytes.full / kGiB, full, 3);
}

TEST(Logits, T51) {
  expect_logits(logits_bytes(8192, 1, 128256, 1), 1.957, 3.914, 9.785);
  expect_logits(logits_bytes(8192, 1, 128256, 8), 0.245, 0.489, 1.223);
  expect_logits(logits_bytes(8192, 1, 151936, 1), 2.318, 4.637, 11.592);
  expect_logits(logits_bytes(4096, 1, 32000, 1), 0.244, 0.488, 1.221);
  expect_logits(logits_bytes(2048, 1, 51200, 8), 0.024, 0.049, 0.122);
}

}  // namespace
}  // namespace steptwin
