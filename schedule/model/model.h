// Decoder-only transformers as data: exact parameter lists and, per segment, the kernels and bytes of every phase.
// Families: GPT (LayerNorm, biases, learned positions, GELU, 4h MLP) and Llama (RMSNorm, SwiGLU, GQA, RoPE, no biases).
// Formulas: specs/memory.md 2.1-2.3, 2.7; specs/cost_models.md 9. Symbols: s sequence, b micro-batch, h hidden, a heads,
// k KV heads, d head size, f FFN width, V vocabulary, L layers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/base/units.h"
#include "schedule/ir/op.h"
#include "schedule/ir/schedule.h"
#include "schedule/model/frozen.h"

namespace steptwin {

enum class Family : std::uint8_t { Gpt, Llama };

struct ModelShape {
  std::string name;
  Family family = Family::Gpt;
  std::int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_size = 0, ffn = 0, vocabulary = 0;
  std::int64_t positions = 0;      // learned position rows (GPT), longest sequence otherwise
  bool tied = false;               // head shares the token embedding
  bool flash_attention = true;     // scores are not kept; row statistics (LSE, fp32) are
  double dropout = 0;              // > 0: masks of 1 byte an element are kept
  std::int64_t layers_per_block = 1;  // layers in a row that share the parameters of the first of them (Lan et al., ALBERT)
  std::vector<std::string> frozen = {};  // patterns (frozen.h) of the parameters that are not trained
  std::int64_t first_of_block(std::int64_t layer) const { return layer - layer % layers_per_block; }
  bool operator==(const ModelShape&) const = default;
};

// Segments of the network in order: "embed", then per layer "attn" and "mlp", then "head" (final norm, projection, loss).
struct Parameter {
  std::string name;                 // "layers.3.attn.qkv.weight"; 3 is the first layer of its block
  std::vector<std::int64_t> shape;
  bool tied = false;                // the head's copy of a tied embedding: same values, counted once, frozen with it
  bool frozen = false;
  std::int64_t elements() const;
};

// Parameters of one segment, in the order they are laid out. layer is ignored for "embed" and "head".
std::vector<Parameter> embedding_parameters(const ModelShape& model);
std::vector<Parameter> attention_parameters(const ModelShape& model, std::int64_t layer);
std::vector<Parameter> mlp_parameters(const ModelShape& model, std::int64_t layer);
std::vector<Parameter> head_parameters(const ModelShape& model);   // a tied head lists its copy with tied = true
std::int64_t parameter_count(const ModelShape& model);             // tied copies once

struct BatchShape {
  std::int64_t micro_batch = 1, sequence = 1;
};

enum class SegmentKind : std::uint8_t { Embedding, Attention, Mlp, Head };
const char* segment_name(SegmentKind kind);  // "embed", "attn", "mlp", "head"
std::vector<Parameter> segment_parameters(const ModelShape& model, SegmentKind kind, std::int64_t layer);
std::vector<std::string> parameter_names(const ModelShape& model);  // in network order, tied copies left out

// What is asked of every segment's backward: the one place that decides it. By segment_place(): the embedding 0, then two of each
// layer, the head last.
std::vector<WantedGradients> wanted_gradients(const ModelShape& model);
std::size_t segment_place(const ModelShape& model, SegmentKind kind, std::int64_t layer);

// A micro-batch's inputs: token ids [b, s] (the embedding's input) and target ids [b, s] (the head's second input), int64 as
// LibTorch's gather and cross entropy take them. Buffers of category Input that the compile step creates, one each.
inline constexpr DType kTokenType = DType::Int64;
Bytes token_ids_bytes(const BatchShape& batch);

// What one segment costs for one micro-batch. Tensor offsets in `saved` are packed, 512-byte aligned; the tables of what is kept, and
// why, stand in attention_segment.cpp, mlp_segment.cpp, embedding_segment.cpp and head_segment.cpp.
// The matmuls of weight_grad add into the gradient in place (read and write at `gradient`), so no separate accumulation and no
// dW transient exists. Norm gains: input_grad's norm backward yields this micro-batch's sums (fp32), weight_grad adds them.
//
// All of it depends on which gradients are wanted. Where the input's is not, input_grad is what stands between dy and the weight gradients;
// where none is, both works and `saved` are empty.
struct SegmentCost {
  Work forward, input_grad, weight_grad;   // backward = input_grad kernels then weight_grad kernels
  Layout saved;                            // tensors kept from forward to backward (the op list really kept), without the segment's
                                           // input, see keeps_input; may be empty
  bool keeps_input = false;                // backward also needs the segment's input tensor (its own buffer, kept by the caller):
                                           // the residual stream; for "embed" the token ids. "head" also keeps the target ids
  Bytes saved_bytes;                       // size of `saved` as laid out
  Layout passing;                          // what the forward makes beside them and no wanted gradient needs: it dies with the forward
  Bytes passing_bytes;
  Bytes output_bytes;                      // the boundary tensor it hands on (b*s*h in compute type; the head: the loss, 4 bytes)
  Bytes forward_workspace, backward_workspace;  // transients inside the op (logits gradients, score matrices when not flash)
  Layout kept;                             // what remains between I and W when they run apart; none of the embedding
  Bytes kept_for_weight_grad;              // its size
};
SegmentCost segment_cost(const ModelShape& model, SegmentKind kind, const BatchShape& batch, DType compute, DType gradient = DType::Fp32,
                         const WantedGradients& wanted = {});

// One work after the other: backward = join(input_grad, weight_grad).
Work join(const Work& first, const Work& second);

// Sum over a layer's two segments of saved tensors and kept inputs, in raw (unaligned) element bytes: comparable to memory.md
// T-30..T-38 where the op lists agree. Llama with flash attention in a 16-bit type equals T-37; GPT with dropout and without flash
// attention equals sbh(34 + 5as/h) plus the norms' mean and rstd, 16 bytes a token.
Bytes layer_activation_bytes(const ModelShape& model, const BatchShape& batch, DType compute);
// The same of one segment and what is wanted of it.
Bytes segment_activation_bytes(const ModelShape& model, SegmentKind kind, const BatchShape& batch, DType compute,
                               const WantedGradients& wanted);

// Closed forms (Korthikanti et al., Megatron's estimator): activation_formulas.h. Optimizer, cast and fill work: optimizer_work.h.

// Presets: gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-175b, llama2-7b/13b/70b, llama3-8b/70b/405b.
const std::vector<ModelShape>& model_presets();
// Reads a Hugging Face config.json of model_type gpt2 or llama. Throws InputError with positions.
// Keys that do not change shapes are ignored, among them dropout probabilities, activation names and rope scaling.
ModelShape load_hf_config(const std::string& path);
ModelShape parse_hf_config(std::string_view text, const std::string& file);

// Training flops of one micro-batch (forward + twice that for backward, full attention, without recompute; of the backward what frozen
// parameters leave of it): the numerator of MFU. GPT: 72 b s L h^2 (1 + s/(6h) + V/(12Lh)), specs/cost_models.md 9.
Flops model_flops_per_micro_batch(const ModelShape& model, const BatchShape& batch);
// Whether every count of this description (flops of the model, bytes of a segment, parameters times 32 bytes) stays below 2^61; the
// functions above require it. For checking user input; all fields must be > 0.
bool sizes_fit(const ModelShape& model, const BatchShape& batch);

}  // namespace steptwin
