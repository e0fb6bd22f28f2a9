// Combinations that are impossible, and warnings about those that are merely unwise. Each looks only at sections that were read well.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "schedule/batching.h"
#include "schedule/ir/limits.h"
#include "schedule/model/partition.h"
#include "schedule/scenario_parts.h"

namespace steptwin {
namespace {

constexpr double kMostRanks = kMaxRanks;  // of a schedule
constexpr double kMostOps = 4e8;          // what ids and memory can carry
constexpr double kMostFlops = 4e18;       // of one micro-batch: int64 with room for sums
constexpr double kMostBytes = 1e17;       // of parameters, or of everything kept for one step
constexpr double kMostTimeNs = 4e18;      // of a whole run with given costs

double d(std::int64_t value) { return static_cast<double>(value); }

std::int64_t axis_size(const ScenarioReading& r, std::string_view name) { return axis_size(r.scenario.mesh, name); }

// The node to point at: the key if it is stated, else its section, else the document.
const JsonNode& anchor(const ScenarioReading& r, std::string_view section, std::string_view key) {
  if (const JsonNode* node = r.node(section, key)) return *node;
  const JsonNode* node = r.root.find(section);
  return node != nullptr ? *node : *r.root.node();
}

void report(ScenarioReading& r, const char* code, const JsonNode& at, std::string text, std::string help) {
  // Cross-field problems keep their code even when the value came from --set: the value is fine by itself.
  r.problems.add({Severity::Error, code, std::move(text), std::move(help), place_of(at), {}});
}

void warn(ScenarioReading& r, Severity severity, const char* code, const JsonNode& at, std::string text, std::string help) {
  r.scenario.notes.push_back({severity, code, std::move(text), std::move(help), place_of(at), {}});
}

void check_mesh_size(ScenarioReading& r) {
  double ranks = 1;
  for (const Axis& axis : r.scenario.mesh.axes) ranks *= axis.size;
  if (ranks <= kMostRanks) return;
  report(r, "SIZE", anchor(r, "mesh", "dp"), fmt::format("the mesh has {:.0f} ranks", ranks),
         fmt::format("at most {:.0f} are possible", kMostRanks));
  r.good.mesh = false;
}

void check_heads(ScenarioReading& r) {
  const ModelShape& m = r.scenario.model;
  if (m.heads % m.kv_heads != 0)
    report(r, "HEADS", anchor(r, "model", "kv_heads"), fmt::format("{} key-value heads do not divide {} heads", m.kv_heads, m.heads),
           "each key-value head serves the same number of heads");
  if (m.family == Family::Gpt && m.kv_heads != m.heads)
    report(r, "HEADS", anchor(r, "model", "kv_heads"), "a GPT model has as many key-value heads as heads",
           fmt::format("write \"kv_heads\": {}", m.heads));
  const bool stated = r.node("model", "head_size") != nullptr;
  if (!stated && m.hidden % m.heads != 0)
    report(r, "HEADS", anchor(r, "model", "heads"), fmt::format("{} heads do not divide the hidden size {}", m.heads, m.hidden),
           m.family == Family::Gpt ? "choose a divisor" : "choose a divisor, or state \"head_size\"");
  if (stated && m.family == Family::Gpt && m.heads * m.head_size != m.hidden)
    report(r, "HEADS", anchor(r, "model", "head_size"),
           fmt::format("{} heads of {} make {}, but a GPT model needs the hidden size {}", m.heads, m.head_size, m.heads * m.head_size,
                       m.hidden),
           "remove \"head_size\"");
}

void check_sequence(ScenarioReading& r) {
  ModelShape& m = r.scenario.model;
  const std::int64_t sequence = r.scenario.batch.sequence;
  if (m.positions == 0) m.positions = sequence;  // explicit Llama model that states no limit
  if (sequence <= m.positions) return;
  const JsonNode& at = anchor(r, "batch", "sequence_length");
  if (m.family == Family::Gpt)
    report(r, "SEQUENCE", at, fmt::format("sequence length {} is beyond the model's {} learned positions", sequence, m.positions),
           fmt::format("use at most {}, or state model.positions", m.positions));
  else
    warn(r, Severity::Note, "SEQUENCE", at,
         fmt::format("sequence length {} is longer than the {} the model was made for", sequence, m.positions), {});
}

// Parameters by the dense formulas, in double: only their order of magnitude matters here.
double rough_parameters(const ModelShape& m) {
  const double attention = 2 * d(m.hidden) * d(m.head_size) * (d(m.heads) + d(m.kv_heads));
  return d(m.layers) * (attention + 3 * d(m.hidden) * d(m.ffn)) + (2 * d(m.vocabulary) + d(m.positions)) * d(m.hidden);
}

void check_magnitudes(ScenarioReading& r) {
  const Scenario& s = r.scenario;
  const ModelShape& m = s.model;
  BatchShape largest = layer_batch(s);
  largest.micro_batch = std::max(largest.micro_batch, s.batch.micro_batch);
  const double tokens = d(largest.micro_batch) * d(s.batch.sequence);
  const double scores = tokens * d(s.batch.sequence) * d(m.heads);
  const double parameters = rough_parameters(m);
  const double flops = 6 * parameters * tokens + 14 * scores * d(m.head_size) * d(m.layers);
  const double width = 20 * d(m.hidden) + 6 * d(m.ffn) + 6 * d(m.heads) * d(m.head_size);
  const double micro_batches = d(layer_micro_batches(s));
  const double kept = micro_batches * (4 * d(m.layers) * (tokens * width + 3 * scores) + 12 * tokens * d(m.vocabulary));
  const JsonNode& batch = anchor(r, "batch", "micro_batch_size");
  if (parameters * 20 > kMostBytes)
    report(r, "SIZE", anchor(r, "model", "hidden"), fmt::format("the model has about {:.1e} parameters", parameters),
           "no machine holds this; check the sizes");
  else if (flops > kMostFlops || kept > kMostBytes || !sizes_fit(m, largest))
    report(r, "SIZE", batch, fmt::format("one step needs about {:.1e} flops a micro-batch and {:.1e} bytes of activations", flops, kept),
           "beyond what can be counted; make the batch or the sequence smaller");
  else if (micro_batches * (8 * d(m.layers) + 16 * d(axis_size(r, "pp"))) > kMostOps)
    report(r, "SIZE", anchor(r, "batch", "micro_batches"),
           fmt::format("{} micro-batches of {} layers make too many operations", layer_micro_batches(s), m.layers),
           "use fewer micro-batches");
}

void check_partition(ScenarioReading& r) {
  const std::int64_t stages = axis_size(r, "pp"), layers = r.scenario.model.layers;
  const std::vector<std::int64_t>& parts = r.scenario.layers_per_stage;
  const ModelShape& model = r.scenario.model;
  if (parts.empty()) {
    const std::int64_t blocks = block_count(model);
    if (stages <= blocks) return;
    const std::string of = model.layers_per_block > 1 ? fmt::format("blocks of {} layers", model.layers_per_block) : "layers";
    return report(r, "PARTITION", anchor(r, "mesh", "pp"), fmt::format("{} pipeline stages for {} {}: each stage needs one", stages, blocks, of),
                  fmt::format("use \"pp\": {} or less", blocks));
  }
  const JsonNode& at = anchor(r, "schedule", "layers_per_stage");
  if (static_cast<std::int64_t>(parts.size()) != stages) {
    report(r, "PARTITION", at, fmt::format("{} entries for {} pipeline stages", parts.size(), stages), "one entry per stage");
    return;
  }
  const std::int64_t sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  if (sum != layers)
    report(r, "PARTITION", at, fmt::format("the stages hold {} layers together, but the model has {}", sum, layers),
           sum < layers ? fmt::format("add {}", layers - sum) : fmt::format("take {} away", sum - layers));
  else if (const auto stage = stage_inside_block(model, parts))
    report(r, "PARTITION", at.items[*stage],
           fmt::format("stage {} begins in the middle of a block of {} layers that share their parameters", *stage, model.layers_per_block),
           fmt::format("let every stage begin with a block: [{}]", fmt::join(default_partition(model, stages), ", ")));
}

void check_blocks(ScenarioReading& r) {
  const ModelShape& model = r.scenario.model;
  if (model.layers_per_block > model.layers)
    report(r, "PARTITION", anchor(r, "model", "layers_per_block"),
           fmt::format("blocks of {} layers, but the model has {}", model.layers_per_block, model.layers),
           fmt::format("write \"layers_per_block\": {}, which lets all layers share their parameters", model.layers));
}

void check_warm_up(ScenarioReading& r) {
  const std::vector<std::int64_t>& warm_up = r.scenario.warm_up;
  if (warm_up.empty()) return;
  const JsonNode& at = anchor(r, "schedule", "warm_up");
  const std::int64_t stages = axis_size(r, "pp");
  if (static_cast<std::int64_t>(warm_up.size()) != stages)
    return report(r, "WARM-UP", at, fmt::format("{} entries for {} pipeline ranks", warm_up.size(), stages), "one entry per rank");
  const auto too_many = std::find_if(warm_up.begin(), warm_up.end(), [&](std::int64_t w) { return w > r.scenario.micro_batches; });
  if (too_many != warm_up.end())
    report(r, "WARM-UP", at.items[static_cast<std::size_t>(too_many - warm_up.begin())],
           fmt::format("{} warm-up forwards, but there are {} micro-batches", *too_many, r.scenario.micro_batches),
           fmt::format("use at most {}", r.scenario.micro_batches));
}

void check_gradient_type(ScenarioReading& r) {
  const Scenario& s = r.scenario;
  if (s.gradient == DType::Fp32 || s.gradient == s.compute) return;
  report(r, "PRECISION", anchor(r, "precision", "gradient"),
         fmt::format("gradients in {} with compute in {}", name_of(s.gradient), name_of(s.compute)),
         s.compute == DType::Fp32 ? "use \"fp32\"" : fmt::format("use \"fp32\" or {}", in_quotes(name_of(s.compute))));
}

void expand_per_stage(ScenarioReading& r, const char* key, std::vector<Duration>& times) {
  const auto stages = static_cast<std::size_t>(axis_size(r, "pp"));
  const JsonNode& at = anchor(r, "cost", key);
  if (times.size() == 1 && at.type != JsonType::Array) times.resize(stages, times.front());
  if (times.size() != stages)
    report(r, "COST", at, fmt::format("{} has {} entries for {} pipeline stages", in_quotes(key), times.size(), stages),
           "one entry per stage, or one number for all");
}

void check_given_cost(ScenarioReading& r) {
  GivenCost& cost = *r.scenario.given;
  expand_per_stage(r, "forward_us", cost.forward);
  expand_per_stage(r, "input_grad_us", cost.input_grad);
  expand_per_stage(r, "weight_grad_us", cost.weight_grad);
  expand_per_stage(r, "optimizer_us", cost.optimizer);
  double longest = d(ns(cost.p2p)) * 2;
  for (const auto* times :
       {&cost.forward, &cost.forward, &cost.input_grad, &cost.weight_grad, &cost.optimizer}) {  // recompute runs forward twice
    for (const Duration t : *times) longest += d(ns(t));
  }
  const double total = longest * d(r.scenario.micro_batches) * d(r.scenario.steps);
  if (total > kMostTimeNs)
    report(r, "SIZE", anchor(r, "cost", "forward_us"), fmt::format("the run would take {:.1e} s", total * 1e-9),
           "are the times in microseconds?");
}

void check_nodes(ScenarioReading& r) {
  Scenario& s = r.scenario;
  const std::int64_t ranks = s.mesh.size(), devices = s.machine->devices_per_node;
  const std::int64_t needed = (ranks + devices - 1) / devices;
  s.nodes = s.machine->nodes.value_or(static_cast<int>(needed));
  if (s.nodes >= needed) return;
  report(r, "NODES", anchor(r, "machine", "nodes"),
         fmt::format("{} ranks need {} nodes of {} devices, but the machine has {}", ranks, needed, devices, s.nodes),
         fmt::format("write \"nodes\": {}, or use a smaller mesh", needed));
}

// The divisor of `whole` nearest to `wanted`, the smaller of two.
std::int64_t nearest_divisor(std::int64_t whole, std::int64_t wanted) {
  for (std::int64_t distance = 0; distance < whole; ++distance) {
    if (wanted - distance >= 1 && whole % (wanted - distance) == 0) return wanted - distance;
    if (whole % (wanted + distance) == 0) return wanted + distance;
  }
  return whole;
}

void check_frozen_times(ScenarioReading& r) {
  if (r.scenario.given && !r.scenario.model.frozen.empty())
    report(r, "FROZEN", anchor(r, "cost", "model"), "times of whole stages do not say what frozen parameters leave of them",
           "write \"machine\" instead of \"cost\", or remove \"frozen\"");
}

// specs/bmtrain.md 9.2 and 9.3.
void check_pipeline(ScenarioReading& r) {
  const Scenario& s = r.scenario;
  if (!batch_on_every_rank(s)) return;
  const std::int64_t stages = axis_size(r, "pp"), samples = s.batch.micro_batch * stages, pieces = s.pipeline.micro_batches;
  if (stages == 1)
    report(r, "PIPELINE", anchor(r, "pipeline", "form"), "form \"bmtrain\" with one pipeline stage: there is nothing to pipeline",
           "write \"pp\": 2, or remove \"pipeline\"");
  else if (samples % pieces != 0)
    report(r, "PIPELINE", anchor(r, "pipeline", "micro_batches"),
           fmt::format("{} micro-batches do not divide the {} samples of {} stages with a batch of {} each", pieces, samples, stages,
                       s.batch.micro_batch),
           fmt::format("write \"micro_batches\": {}", nearest_divisor(samples, pieces)));
  if (s.order != "gpipe")
    report(r, "PIPELINE", anchor(r, "schedule", "order"),
           fmt::format("order {} in form \"bmtrain\": the loss needs the last hidden state of all micro-batches", in_quotes(s.order)),
           s.order != "1f1b" ? "write \"order\": \"gpipe\""
                             : "write \"order\": \"gpipe\", or for BMTrain's 1F1B branch remove \"pipeline\" and write \"enter\": "
                               "\"step\" in \"zero\"");
  if (s.zero.form == ZeroForm::Deepspeed)
    report(r, "PIPELINE", anchor(r, "zero", "form"),
           "form \"deepspeed\" fetches and frees parameters by use, a pipeline of form \"bmtrain\" gathers a layer once for all micro-batches",
           "write \"form\": \"list\", or remove \"pipeline\"");
  else if (s.zero.level == 3 && s.zero.reshard)
    report(r, "PIPELINE", anchor(r, "zero", "reshard"),
           "form \"bmtrain\" gathers a layer once for all micro-batches and keeps it until its last backward", "write \"reshard\": false");
  if (s.given)
    report(r, "PIPELINE", anchor(r, "cost", "model"), "times of whole stages do not say what embedding and head cost on every rank",
           "write \"machine\" instead of \"cost\"");
}

// BMTrain's 1F1B branch (specs/bmtrain.md 11).
void check_enter_once(ScenarioReading& r) {
  const Scenario& s = r.scenario;
  if (s.zero.enter != ZeroEnter::Step || s.zero.level < 3 || s.zero.form == ZeroForm::Deepspeed) return;
  const JsonNode& at = anchor(r, "zero", "enter");
  if (batch_on_every_rank(s))
    return report(r, "ZERO", at, "in form \"bmtrain\" a block enters once a batch in each direction", "remove \"enter\", or \"pipeline\"");
  if (s.zero.reshard)
    report(r, "ZERO", anchor(r, "zero", "reshard"), "a block that enters once a step keeps what it gathered", "write \"reshard\": false");
  if (s.zero.reduce != ZeroReduce::Step)
    report(r, "ZERO", anchor(r, "zero", "reduce"), "a block that enters once a step reduces its gradients once a step",
           "write \"reduce\": \"step\"");
  const std::int64_t stages = axis_size(r, "pp"), rounds = (s.micro_batches + stages / 2) / stages;
  if (s.order == "1f1b" && s.micro_batches % stages != 0)
    report(r, "PIPELINE", anchor(r, "batch", "micro_batches"),
           fmt::format("{} micro-batches over {} stages: BMTrain's 1F1B branch takes a multiple of the stages", s.micro_batches, stages),
           fmt::format("write \"micro_batches\": {}", std::max<std::int64_t>(rounds, 1) * stages));
}

void check_zero(ScenarioReading& r) {
  const ZeroOptions& zero = r.scenario.zero;
  if (zero.level == 1 && r.scenario.optimizer == OptimizerKind::None)
    report(r, "ZERO", anchor(r, "zero", "level"), "level 1 shards the states of an optimizer, and there is none",
           "write \"optimizer\": {\"kind\": \"adam\"}, or \"level\": 2");
  if (zero.level == 1 && zero.reduce == ZeroReduce::MicroBatch)
    report(r, "ZERO", anchor(r, "zero", "reduce"), "level 1 keeps whole gradients and reduces them once a step",
           "write \"reduce\": \"step\", or \"level\": 2");
  const std::int64_t dp = axis_size(r, "dp"), shard = zero.shard_ranks;
  if (zero.level == 0 || shard == 0 || dp % shard == 0) return;
  std::int64_t nearest = std::min(shard, dp);
  while (dp % nearest != 0) --nearest;
  report(r, "ZERO", anchor(r, "zero", "shard_ranks"), fmt::format("shards of {} ranks do not divide {} data-parallel ranks", shard, dp),
         fmt::format("write \"shard_ranks\": {}, or remove it to shard over all of dp", nearest));
}

void check_recompute(ScenarioReading& r) {
  const Scenario& s = r.scenario;
  const std::int64_t stages = axis_size(r, "pp");
  if (s.recompute == RecomputeMode::Sqrt && stages > 1)
    report(r, "RECOMPUTE", anchor(r, "recompute", "mode"),
           fmt::format("the sqrt list with {} pipeline stages: it is one list over all layers", stages),
           "write \"mode\": \"full\" or \"every\", or \"pp\": 1");
  if (s.recompute == RecomputeMode::Sqrt && s.hidden_states)
    report(r, "RECOMPUTE", anchor(r, "recompute", "hidden_states"), "the sqrt list keeps no input of the layers without a slot to return",
           "write \"mode\": \"full\", or remove \"hidden_states\"");
  if (s.recompute == RecomputeMode::Every && s.recompute_every > s.model.layers)
    report(r, "RECOMPUTE", anchor(r, "recompute", "every"),
           fmt::format("groups of {} layers, but the model has {}", s.recompute_every, s.model.layers),
           fmt::format("write \"every\": {}, which recomputes all layers as one group", s.model.layers));
}

// What a save does not know.
void check_save(ScenarioReading& r) {
  const Scenario& s = r.scenario;
  if (s.task != RunTask::Save) return;
  if (s.given)
    report(r, "CONFLICT", anchor(r, "cost", "model"), "times of stages do not say what a save's gathers and copies take",
           "write \"machine\" instead of \"cost\"");
  if (s.lazy_state)
    report(r, "CONFLICT", anchor(r, "run", "lazy_state"), "a save stands beside the whole state of training, and lazy state begins with the use in a step",
           "write \"lazy_state\": false, or \"task\": \"step\"");
}

void note_micro_batches(ScenarioReading& r) {
  const std::int64_t m = pipelined_together(r.scenario), p = axis_size(r, "pp");
  if (p == 1 || r.scenario.task == RunTask::Save) return;
  const char* const section = batch_on_every_rank(r.scenario) ? "pipeline" : "batch";
  const JsonNode& at = anchor(r, section, "micro_batches");
  if (r.scenario.order == "1f1b" && m < p)
    warn(r, Severity::Warning, "FEW-MICRO-BATCHES", at,
         fmt::format("1f1b with {} micro-batches on {} stages: PyTorch would refuse, and stages stay idle", m, p),
         fmt::format("--set batch.micro_batches={}", p));
  if (r.scenario.order == "gpipe" && m < 4 * p)  // GPipe: "negligible when M >= 4K"
    warn(r, Severity::Warning, "FEW-MICRO-BATCHES", at,
         fmt::format("gpipe with {} micro-batches on {} stages: even equal stages idle {:.0f} % of the step", m, p,
                     100 * d(p - 1) / d(m + p - 1)),
         fmt::format("--set {}.micro_batches={} brings that below 20 %", section, 4 * p));
}

}  // namespace

void check_across_fields(ScenarioReading& r) {
  if (r.good.mesh) check_mesh_size(r);
  if (r.good.model) check_heads(r), check_blocks(r);
  if (r.good.model && r.good.batch) check_sequence(r);
  if (r.good.model && r.good.batch && r.good.mesh) check_magnitudes(r);
  if (r.good.model && r.good.mesh && r.good.schedule) check_partition(r);
  if (r.good.mesh && r.good.batch && r.good.schedule) check_warm_up(r);
  if (r.good.precision) check_gradient_type(r);
  if (r.good.cost && r.good.mesh && r.good.batch && r.good.run) check_given_cost(r);
  if (r.good.mesh) check_zero(r);
  if (r.good.model) check_frozen_times(r);
  if (r.good.mesh && r.good.batch && r.good.pipeline && r.good.schedule) check_enter_once(r);
  if (r.good.mesh && r.good.batch && r.good.pipeline && r.good.schedule) check_pipeline(r);
  if (r.good.mesh && r.good.model && r.good.run) check_recompute(r);
  if (r.good.run) check_save(r);
  if (r.good.machine && r.good.mesh) check_nodes(r);
  if (r.good.mesh && r.good.batch && r.good.schedule) note_micro_batches(r);
}

}  // namespace steptwin
