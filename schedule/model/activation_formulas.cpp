#include "schedule/model/activation_formulas.h"

namespace steptwin {
namespace {

double real(std::int64_t value) { return static_cast<double>(value); }
double sbh(const ActivationFormula& f) { return real(f.sequence) * real(f.micro_batch) * real(f.hidden); }
double score_part(const ActivationFormula& f) { return 5 * real(f.heads) * real(f.sequence) / real(f.hidden); }  // 5as/h

double sbh(const MegatronFormula& f) { return real(f.sequence) * real(f.micro_batch) * real(f.hidden); }

// Extra chunks in flight on the first stage of an interleaved schedule.
double interleaved_factor(std::int64_t stages, std::int64_t chunks) {
  return chunks > 1 ? 1 + real(stages - 1) / (real(stages) * real(chunks)) : 1;
}

}  // namespace

double korthikanti_bytes_none(const ActivationFormula& f) { return sbh(f) * (34 + score_part(f)); }

double korthikanti_bytes_tensor(const ActivationFormula& f) { return sbh(f) * (10 + (24 + score_part(f)) / real(f.tensor_parallel)); }

double korthikanti_bytes_tensor_sequence(const ActivationFormula& f) { return korthikanti_bytes_none(f) / real(f.tensor_parallel); }

double korthikanti_bytes_selective(const ActivationFormula& f) { return sbh(f) * (10 + 24 / real(f.tensor_parallel)); }

double korthikanti_bytes_sequence_selective(const ActivationFormula& f) { return 34 * sbh(f) / real(f.tensor_parallel); }

double korthikanti_bytes_full(const ActivationFormula& f) { return 2 * sbh(f); }

double korthikanti_bytes_full_sharded(const ActivationFormula& f) { return 2 * sbh(f) / real(f.tensor_parallel); }

double first_stage_bytes(double layer_bytes, std::int64_t layers, std::int64_t stages, std::int64_t chunks) {
  return real(layers) * layer_bytes * interleaved_factor(stages, chunks);
}

double korthikanti_state_bytes(std::int64_t layers, std::int64_t hidden, std::int64_t tensor_parallel, std::int64_t stages) {
  return 12 * real(layers) * real(hidden) * real(hidden) * 18 / (real(tensor_parallel) * real(stages));
}

double zero_bubble_activation_bytes(const ActivationFormula& f) {
  return real(f.sequence) * real(f.micro_batch) * (34 * real(f.hidden) + 5 * real(f.heads) * real(f.sequence));
}

double zero_bubble_weight_grad_bytes(const ActivationFormula& f) { return 32 * sbh(f); }

double llama_layer_bytes(const LlamaFormula& f) {
  const double h = real(f.hidden), a = real(f.heads), k = real(f.kv_heads), d = real(f.head_size);
  const double split = 2 * d * (a + 2 * k) + (2 * a * d + 4 * a) + 6 * real(f.ffn);
  return real(f.sequence) * real(f.micro_batch) * ((8 * h + 8) / real(f.sequence_parallel) + split / real(f.tensor_parallel));
}

LogitsBytes logits_bytes(std::int64_t sequence, std::int64_t micro_batch, std::int64_t vocabulary, std::int64_t tensor_parallel) {
  const double elements = real(sequence) * real(micro_batch) * real(vocabulary) / real(tensor_parallel);
  return {2 * elements, 4 * elements, 10 * elements};
}

double megatron_layer_parameters(const MegatronFormula& f) {
  const double h = real(f.hidden);
  const double query_share = real(f.heads) * real(f.head_size) / h;  // ad/h
  return 2 * h * (real(f.ffn) * f.gate_factor + real(f.norm_vectors)) + 2 * h * h * (1 + real(f.kv_heads) / real(f.heads)) * query_share;
}

double megatron_parameters(const MegatronFormula& f) {
  const double h = real(f.hidden);
  return real(f.layers) * megatron_layer_parameters(f) + real(f.norm_vectors) * h + real(f.vocabulary) * h * (f.tied ? 1 : 2);
}

double megatron_shard_parameters(const MegatronFormula& f) {
  const double h = real(f.hidden);
  const double layers = (real(f.layers) * megatron_layer_parameters(f) + real(f.norm_vectors) * h) / real(f.stages);
  const double tables = real(f.vocabulary) * h * (f.tied || f.stages > 1 ? 1 : 2);
  return (layers + tables) / real(f.tensor_parallel);
}

double megatron_state_bytes(const MegatronFormula& f) { return megatron_shard_parameters(f) * f.bytes_per_parameter; }

double megatron_layer_activation_bytes(const MegatronFormula& f) {
  return sbh(f) * (18 + 4 * real(f.ffn) / real(f.hidden)) / real(f.tensor_parallel);
}

// [L sbh(18 + 4f/h) + 8sbp + sbhp], times the interleaved factor, or min(1, m/p) for v = 1 and p > 1; plus 4sbh(1 + V/h) for p = 1; over t.
double megatron_activation_bytes(const MegatronFormula& f) {
  const double t = real(f.tensor_parallel), p = real(f.stages), sb = real(f.sequence) * real(f.micro_batch);
  double bytes = real(f.layers) * megatron_layer_activation_bytes(f) * t + 8 * sb * p + sbh(f) * p;
  bytes *= interleaved_factor(f.stages, f.chunks);
  if (f.stages > 1 && f.chunks == 1 && f.micro_batches < f.stages) bytes *= real(f.micro_batches) / p;
  if (f.stages == 1) bytes += 4 * sbh(f) * (1 + real(f.vocabulary) / real(f.hidden));
  return bytes / t;
}

}  // namespace steptwin
