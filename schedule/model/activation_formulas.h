// Closed forms of activation memory from the literature, specs/memory.md 2.1, 2.3, 2.5, 2.7: oracles for the segment descriptions and
// lines of `show --memory`. They are what the papers print, not what steptwin's op lists keep. All results are bytes (double).
// Symbols: s sequence, b micro-batch, h hidden, a heads, k KV heads, d head size, f FFN width, V vocabulary, t tensor parallel,
// p stages, v chunks per stage, m micro-batches.
#pragma once

#include <cstdint>

namespace steptwin {

struct ActivationFormula {
  std::int64_t sequence = 0, micro_batch = 0, hidden = 0, heads = 0;
  std::int64_t tensor_parallel = 1;
};

// One GPT layer, 16-bit, dropout masks of 1 byte (Korthikanti et al., MLSys'23; T-30, T-31).
double korthikanti_bytes_none(const ActivationFormula& f);                // sbh(34 + 5as/h)
double korthikanti_bytes_tensor(const ActivationFormula& f);              // sbh(10 + 24/t + 5as/(ht))
double korthikanti_bytes_tensor_sequence(const ActivationFormula& f);     // sbh/t (34 + 5as/h)
double korthikanti_bytes_selective(const ActivationFormula& f);           // sbh(10 + 24/t)
double korthikanti_bytes_sequence_selective(const ActivationFormula& f);  // 34 sbh/t
double korthikanti_bytes_full(const ActivationFormula& f);                // 2sbh
double korthikanti_bytes_full_sharded(const ActivationFormula& f);        // 2sbh/t

// Activations of the first stage under 1F1B: `layers` layers' worth whatever p; (1 + (p-1)/(pv)) times that when interleaved (v > 1). T-34.
double first_stage_bytes(double layer_bytes, std::int64_t layers, std::int64_t stages, std::int64_t chunks);
// Parameters and optimizer of the layers, 18 bytes a parameter: 12 L h^2 * 18 / (tp). T-35.
double korthikanti_state_bytes(std::int64_t layers, std::int64_t hidden, std::int64_t tensor_parallel, std::int64_t stages);

// Zero-bubble paper, Table 1: one GPT layer and micro-batch. T-48.
double zero_bubble_activation_bytes(const ActivationFormula& f);   // M_B = sb(34h + 5as)
double zero_bubble_weight_grad_bytes(const ActivationFormula& f);  // M_W = 32 sbh, what remains between I and W

// One Llama layer: RMSNorm, unfused SwiGLU, no dropout, flash attention, 16-bit. T-37.
struct LlamaFormula {
  std::int64_t sequence = 0, micro_batch = 0, hidden = 0, heads = 0, kv_heads = 0, head_size = 0, ffn = 0;
  std::int64_t tensor_parallel = 1, sequence_parallel = 1;
};
double llama_layer_bytes(const LlamaFormula& f);  // per token (8h + 8)/sp + 2d(a + 2k)/t + (2ad + 4a)/t + 6f/t

// The three working sets of a loss over full logits: bf16 logits; fp32 copy; bf16 + fp32 + fp32 gradient. T-51.
struct LogitsBytes {
  double bf16 = 0, fp32 = 0, full = 0;
};
LogitsBytes logits_bytes(std::int64_t sequence, std::int64_t micro_batch, std::int64_t vocabulary, std::int64_t tensor_parallel);

// Megatron's theoretical memory report (sequence parallel + selective recompute). T-15, T-38, T-39.
struct MegatronFormula {
  std::int64_t layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_size = 0, vocabulary = 0;
  double gate_factor = 1;          // 1.5 for gated MLPs
  std::int64_t norm_vectors = 2;   // 2 LayerNorm (gain and bias), 1 RMSNorm
  bool tied = false;
  std::int64_t sequence = 0, micro_batch = 1, micro_batches = 1;
  std::int64_t tensor_parallel = 1, stages = 1, chunks = 1;
  double bytes_per_parameter = 18;  // distributed optimizer over N ranks: 6 + 12/N
};
double megatron_layer_parameters(const MegatronFormula& f);        // 2h(fg + n) + 2h^2 (1 + k/a)(ad/h)
double megatron_parameters(const MegatronFormula& f);              // whole model with the final norm
double megatron_shard_parameters(const MegatronFormula& f);        // the most loaded shard
double megatron_state_bytes(const MegatronFormula& f);
double megatron_layer_activation_bytes(const MegatronFormula& f);  // sbh(18 + 4f/h)/t
double megatron_activation_bytes(const MegatronFormula& f);        // most loaded stage, embedding and (p = 1) logits included

}  // namespace steptwin
