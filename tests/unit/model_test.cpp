// Parameter lists, segments and kernels of schedule/model against specs/memory.md (T-10..T-12, T-37, T-51) and cost_models.md 9, 12.
#include <gtest/gtest.h>

#include <set>

#include "schedule/model/activation_formulas.h"
#include "schedule/model/model.h"
#include "schedule/model/optimizer_work.h"

namespace steptwin {
namespace {

constexpr SegmentKind kKinds[] = {SegmentKind::Embedding, SegmentKind::Attention, SegmentKind::Mlp, SegmentKind::Head};

ModelShape preset(const std::string& name) {
  for (const ModelShape& model : model_presets()) {
    if (model.name == name) return model;
  }
  ADD_FAILURE() << "no preset " << name;
  return {};
}

ModelShape gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  ModelShape model = preset("gpt3-175b");
  model.layers = layers;
  model.hidden = hidden;
  model.heads = model.kv_heads = heads;
  model.head_size = hidden / heads;
  model.ffn = 4 * hidden;
  return model;
}

std::int64_t matrix_flops(const Work& work) {
  std::int64_t sum = 0;
  for (const Kernel& kernel : work.kernels) sum += kernel.kind == Kernel::Kind::Stream ? 0 : kernel.flops.value;
  return sum;
}

std::int64_t raw_bytes(const Layout& layout) {
  std::int64_t sum = 0;
  for (const TensorSpec& tensor : layout.tensors) sum += tensor.bytes().value;
  return sum;
}

struct LayerFlops {
  std::int64_t forward = 0, input_grad = 0, weight_grad = 0;
};
LayerFlops layer_flops(const ModelShape& model, const BatchShape& batch) {
  LayerFlops sum;
  for (const SegmentKind kind : {SegmentKind::Attention, SegmentKind::Mlp}) {
    const SegmentCost cost = segment_cost(model, kind, batch, DType::Bf16);
    sum.forward += matrix_flops(cost.forward);
    sum.input_grad += matrix_flops(cost.input_grad);
    sum.weight_grad += matrix_flops(cost.weight_grad);
  }
  return sum;
}

TEST(Parameters, GptCountsAreT10AndT11) {
  EXPECT_EQ(parameter_count(preset("gpt3-175b")), 174615846912);
  EXPECT_EQ(parameter_count(gpt(48, 6144, 64)), 22074273792);
  EXPECT_EQ(parameter_count(gpt(40, 6144, 64)), 18449756160);
  EXPECT_EQ(parameter_count(gpt(48, 8192, 64)), 39096041472);
  EXPECT_EQ(parameter_count(gpt(60, 10240, 80)), 76050739200);
}

TEST(Parameters, LlamaCountsAreT12) {
  EXPECT_EQ(parameter_count(preset("llama2-7b")), 6738415616);
  EXPECT_EQ(parameter_count(preset("llama2-13b")), 13015864320);
  EXPECT_EQ(parameter_count(preset("llama2-70b")), 68976648192);
  EXPECT_EQ(parameter_count(preset("llama3-8b")), 8030261248);
  EXPECT_EQ(parameter_count(preset("llama3-70b")), 70553706496);
  EXPECT_EQ(parameter_count(preset("llama3-405b")), 405853388800);
}

// Closed form L(12h^2 + 13h) + Vh + sh + 2h with the published shapes; 124,439,808 is the released gpt2's count.
TEST(Parameters, Gpt2FamilyTied) {
  EXPECT_EQ(parameter_count(preset("gpt2")), 124439808);
  EXPECT_EQ(parameter_count(preset("gpt2-medium")), 354823168);
  EXPECT_EQ(parameter_count(preset("gpt2-large")), 774030080);
  EXPECT_EQ(parameter_count(preset("gpt2-xl")), 1557611200);
}

TEST(Parameters, UntyingAddsOneTable) {
  ModelShape model = preset("gpt2");
  EXPECT_TRUE(head_parameters(model).back().tied);
  model.tied = false;
  EXPECT_FALSE(head_parameters(model).back().tied);
  EXPECT_EQ(parameter_count(model), 124439808 + 50257 * 768);
}

TEST(Parameters, NamesAndShapesOfBothFamilies) {
  const std::vector<Parameter> gpt_attention = attention_parameters(preset("gpt2"), 3);
  ASSERT_EQ(gpt_attention.size(), 6u);
  EXPECT_EQ(gpt_attention[2].name, "layers.3.attn.qkv.weight");
  EXPECT_EQ(gpt_attention[2].shape, (std::vector<std::int64_t>{2304, 768}));
  EXPECT_EQ(gpt_attention[3].name, "layers.3.attn.qkv.bias");
  const std::vector<Parameter> llama_attention = attention_parameters(preset("llama3-8b"), 0);
  ASSERT_EQ(llama_attention.size(), 5u);
  EXPECT_EQ(llama_attention[2].name, "layers.0.attn.k.weight");
  EXPECT_EQ(llama_attention[2].shape, (std::vector<std::int64_t>{1024, 4096}));
  EXPECT_EQ(mlp_parameters(preset("llama3-8b"), 1).back().name, "layers.1.mlp.down.weight");
}

TEST(Parameters, NamesAreUniqueInEveryPreset) {
  for (const ModelShape& model : model_presets()) {
    std::set<std::string> names;
    std::size_t count = 0;
    for (const SegmentKind kind : kKinds) {
      for (const Parameter& parameter : segment_parameters(model, kind, 7)) {
        names.insert(parameter.name);
        ++count;
        EXPECT_GT(parameter.elements(), 0);
      }
    }
    EXPECT_EQ(names.size(), count) << model.name;
  }
}

// Layer forward 24bsh^2 + 4bs^2h; without flash I = sbh(24h + 8s), W = 24sbh^2 (cost_models.md 9).
TEST(Kernels, GptLayerFlopsAndZeroBubbleSplit) {
  ModelShape model = gpt(4, 2048, 16);
  const std::int64_t b = 3, s = 1024, h = 2048;
  model.flash_attention = false;
  const LayerFlops plain = layer_flops(model, {b, s});
  EXPECT_EQ(plain.forward, 24 * b * s * h * h + 4 * b * s * s * h);
  EXPECT_EQ(plain.forward, s * b * h * (24 * h + 4 * s));
  EXPECT_EQ(plain.input_grad, s * b * h * (24 * h + 8 * s));
  EXPECT_EQ(plain.weight_grad, 24 * s * b * h * h);
  model.flash_attention = true;
  const LayerFlops flash = layer_flops(model, {b, s});
  EXPECT_EQ(flash.forward, plain.forward);
  EXPECT_EQ(flash.input_grad, s * b * h * (24 * h + 10 * s));  // 2.5 * 4 = 10
  EXPECT_EQ(flash.weight_grad, plain.weight_grad);
}

// Per token and layer, forward: 2(h(h + 2kv) + h^2 + 3h*ffn) + attention 4sh (cost_models.md 9).
TEST(Kernels, LlamaLayerFlops) {
  const std::int64_t s = 512, h = 4096, kv = 1024, f = 14336;
  const LayerFlops flops = layer_flops(preset("llama3-8b"), {2, s});
  EXPECT_EQ(flops.forward, 2 * s * (2 * (h * (h + 2 * kv) + h * h + 3 * h * f) + 4 * s * h));
  EXPECT_EQ(flops.weight_grad, 2 * s * 2 * (h * (h + 2 * kv) + h * h + 3 * h * f));
}

TEST(Kernels, HeadIs2bshVInEveryPhase) {
  const ModelShape model = preset("gpt2");
  const SegmentCost head = segment_cost(model, SegmentKind::Head, {4, 1024}, DType::Bf16);
  const std::int64_t expected = std::int64_t{2} * 4 * 1024 * 768 * 50257;
  EXPECT_EQ(matrix_flops(head.forward), expected);
  EXPECT_EQ(matrix_flops(head.input_grad), expected);
  EXPECT_EQ(matrix_flops(head.weight_grad), expected);
}

TEST(Kernels, MatmulShapesAndBytes) {
  const SegmentCost mlp = segment_cost(preset("gpt2"), SegmentKind::Mlp, {4, 1024}, DType::Bf16);
  ASSERT_EQ(mlp.forward.kernels.size(), 5u);  // norm, up, gelu, down, residual
  const Kernel& up = mlp.forward.kernels[1];
  EXPECT_EQ(up.kind, Kernel::Kind::MatMul);
  EXPECT_EQ(up.m, 4096);
  EXPECT_EQ(up.n, 3072);
  EXPECT_EQ(up.k, 768);
  EXPECT_EQ(up.bytes.value, 2 * (4096 * 768 + 768 * 3072 + 4096 * 3072 + 3072));
  const Kernel& down_grad = mlp.weight_grad.kernels[0];  // reads x and dy in bf16, adds into fp32
  EXPECT_EQ(down_grad.m, 768);
  EXPECT_EQ(down_grad.n, 3072);
  EXPECT_EQ(down_grad.k, 4096);
  EXPECT_EQ(down_grad.bytes.value, 2 * 4096 * (3072 + 768) + 8 * 3072 * 768);
}

TEST(Kernels, EveryKernelMovesBytesAndNoneIsNegative) {
  for (const ModelShape& model : model_presets()) {
    for (const SegmentKind kind : kKinds) {
      const SegmentCost cost = segment_cost(model, kind, {1, 128}, DType::Bf16);
      for (const Work* work : {&cost.forward, &cost.input_grad, &cost.weight_grad}) {
        for (const Kernel& kernel : work->kernels) {
          EXPECT_GT(kernel.bytes.value, 0) << model.name << " " << segment_name(kind);
          EXPECT_GE(kernel.flops.value, 0);
        }
      }
    }
  }
}

// T-37, to the byte: 131,720, 139,400, 274,696, 520,712 bytes per token.
TEST(Saved, LlamaLayerIsT37) {
  const auto per_token = [](const char* name) { return layer_activation_bytes(preset(name), {1, 1}, DType::Bf16).value; };
  EXPECT_EQ(per_token("llama2-7b"), 131720);
  EXPECT_EQ(per_token("llama3-8b"), 139400);
  EXPECT_EQ(per_token("llama3-70b"), 274696);
  EXPECT_EQ(per_token("llama3-405b"), 520712);
  EXPECT_EQ(layer_activation_bytes(preset("llama3-8b"), {2, 8192}, DType::Bf16).value, std::int64_t{139400} * 2 * 8192);
}

// Korthikanti's sbh(34 + 5as/h); beyond it we keep the two norms' mean and rstd, 16 bytes a token.
TEST(Saved, GptLayerWithDropoutIsKorthikantiPlusNormStatistics) {
  ModelShape model = preset("gpt3-175b");
  model.dropout = 0.1;
  model.flash_attention = false;
  const double formula = korthikanti_bytes_none({2048, 1, 12288, 96});
  EXPECT_EQ(static_cast<double>(layer_activation_bytes(model, {1, 2048}, DType::Fp16).value), formula + 16 * 2048);
}

// Flash drops 5as/h and adds the row statistics 4as*b; no dropout drops the two masks, 2sbh.
TEST(Saved, GptLayerWithFlashAndWithoutDropout) {
  const std::int64_t s = 1024, b = 4, h = 768, a = 12;
  EXPECT_EQ(layer_activation_bytes(preset("gpt2"), {b, s}, DType::Bf16).value, s * b * (32 * h + 16 + 4 * a));
}

TEST(Saved, LayoutsArePackedAt512) {
  for (const ModelShape& model : {preset("gpt2"), preset("llama3-8b")}) {
    for (const SegmentKind kind : kKinds) {
      const SegmentCost cost = segment_cost(model, kind, {1, 33}, DType::Bf16);
      std::int64_t end = 0;
      for (const TensorSpec& tensor : cost.saved.tensors) {
        EXPECT_EQ(tensor.offset.value, end);
        end += (tensor.bytes().value + 511) / 512 * 512;
      }
      EXPECT_EQ(cost.saved_bytes.value, end);
      EXPECT_GE(cost.saved_bytes.value, raw_bytes(cost.saved));
    }
  }
}

TEST(Saved, BoundariesAndInputs) {
  const BatchShape batch{4, 1024};
  const ModelShape model = preset("gpt2");
  for (const SegmentKind kind : {SegmentKind::Embedding, SegmentKind::Attention, SegmentKind::Mlp}) {
    EXPECT_EQ(segment_cost(model, kind, batch, DType::Bf16).output_bytes.value, 2 * 4 * 1024 * 768);
  }
  EXPECT_EQ(segment_cost(model, SegmentKind::Head, batch, DType::Bf16).output_bytes.value, 4);
  for (const SegmentKind kind : kKinds) EXPECT_TRUE(segment_cost(model, kind, batch, DType::Bf16).keeps_input);
  EXPECT_TRUE(segment_cost(model, SegmentKind::Embedding, batch, DType::Bf16).saved.tensors.empty());
  EXPECT_EQ(token_ids_bytes(batch).value, 8 * 4 * 1024);
}

// T-51: bf16 logits 1.957 GiB in forward, fp32 softmax 3.914 GiB kept, for Llama 3 8B at s = 8192.
TEST(Saved, HeadWorkingSetIsT51) {
  const SegmentCost head = segment_cost(preset("llama3-8b"), SegmentKind::Head, {1, 8192}, DType::Bf16);
  const LogitsBytes logits = logits_bytes(8192, 1, 128256, 1);
  EXPECT_EQ(head.saved.tensors.back().name, "softmax");
  EXPECT_EQ(static_cast<double>(head.saved.tensors.back().bytes().value), logits.fp32);
  EXPECT_EQ(static_cast<double>(head.forward_workspace.value), logits.bf16 + 4 * 8192);
  const std::int64_t narrow = 2 * 8192 * 4096 + 4 * 4096;
  EXPECT_EQ(static_cast<double>(head.backward_workspace.value), logits.bf16 + static_cast<double>(narrow));
  EXPECT_EQ(segment_cost(preset("llama3-8b"), SegmentKind::Head, {1, 8192}, DType::Fp32).forward_workspace.value, 4 * 8192);
}

// M_W = 32sbh (zero-bubble Table 1), plus the norms' gain and bias sums in fp32.
TEST(Saved, KeptForWeightGradIs32sbhAndNormSums) {
  const std::int64_t s = 1024, b = 6, h = 2304;
  std::int64_t sum = 0;
  for (const SegmentKind kind : {SegmentKind::Attention, SegmentKind::Mlp}) {
    sum += segment_cost(gpt(22, h, 24), kind, {b, s}, DType::Bf16).kept_for_weight_grad.value;
  }
  EXPECT_EQ(sum, 32 * s * b * h + 2 * 2 * 4 * h);
}

TEST(Workspace, ScoresOnlyWithoutFlash) {
  ModelShape model = preset("gpt2");
  const std::int64_t scores = 2 * 4 * 12 * 1024 * 1024;
  EXPECT_EQ(segment_cost(model, SegmentKind::Attention, {4, 1024}, DType::Bf16).forward_workspace.value, 0);
  model.flash_attention = false;
  const SegmentCost cost = segment_cost(model, SegmentKind::Attention, {4, 1024}, DType::Bf16);
  EXPECT_EQ(cost.forward_workspace.value, scores);
  EXPECT_EQ(cost.backward_workspace.value, 2 * scores + 2 * 4 * 1024 * 768 * 4);  // dO and dq, dk, dv beside dp and ds
}

// 72 b s L h^2 (1 + s/(6h) + V/(12Lh)).
TEST(ModelFlops, GptClosedForm) {
  const double b = 4, s = 1024, h = 768, L = 12, V = 50257;
  const double expected = 72 * b * s * L * h * h * (1 + s / (6 * h) + V / (12 * L * h));
  EXPECT_NEAR(static_cast<double>(model_flops_per_micro_batch(preset("gpt2"), {4, 1024}).value), expected, expected * 1e-12);
}

TEST(ModelFlops, SizesFit) {
  for (const ModelShape& model : model_presets()) EXPECT_TRUE(sizes_fit(model, {16, 8192})) << model.name;
  ModelShape huge = preset("llama3-405b");
  EXPECT_FALSE(sizes_fit(huge, {1 << 20, 1 << 20}));
  huge.hidden = std::int64_t{1} << 40;
  EXPECT_FALSE(sizes_fit(huge, {1, 1}));
}

TEST(OptimizerWork, AdamBytes) {
  // gradient 4 + m, v read and written 16 + master read and written 8 + bf16 parameter written 2
  EXPECT_EQ(adam_work(1000).bytes().value, 30000);
  EXPECT_EQ(adam_state_bytes(1000).value, 12000);
  const AdamPrecision plain{DType::Fp32, DType::Fp32, DType::Fp32, DType::Fp32};
  EXPECT_EQ(adam_work(1000, plain).bytes().value, 28000);
  EXPECT_EQ(adam_state_bytes(1000, plain).value, 8000);
  EXPECT_EQ(accumulate_work(10, DType::Bf16, DType::Fp32).bytes().value, 100);
  EXPECT_EQ(cast_work(10, DType::Fp32, DType::Bf16).bytes().value, 60);
}

TEST(OptimizerWork, JoinKeepsOrder) {
  const Work both = join(cast_work(1, DType::Fp32, DType::Bf16), fill_work(2, DType::Fp32));
  ASSERT_EQ(both.kernels.size(), 2u);
  EXPECT_EQ(both.kernels[1].bytes.value, 8);
}

}  // namespace
}  // namespace steptwin
