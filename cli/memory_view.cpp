#include "cli/memory_view.h"

#include <algorithm>
#include <numeric>

#include "schedule/batching.h"
#include "schedule/compile.h"
#include "schedule/ir/liveness.h"
#include "schedule/sqrt_list.h"

namespace steptwin {

namespace {

std::int64_t elements(const std::vector<Parameter>& parameters) {
  return std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0},
                         [](std::int64_t sum, const Parameter& p) { return sum + p.elements(); });
}

// Those that every rank keeps whole although the level shards them.
std::int64_t persistent(const std::vector<Parameter>& parameters, const ZeroOptions& zero) {
  if (zero.form != ZeroForm::Deepspeed) return 0;
  return std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0}, [&](std::int64_t sum, const Parameter& p) {
    return sum + (p.elements() <= zero.deepspeed.param_persistence_threshold ? p.elements() : 0);
  });
}

struct StageParameters {
  std::vector<Parameter> layers, ends;
};

void append(std::vector<Parameter>& all, const std::vector<Parameter>& more) { all.insert(all.end(), more.begin(), more.end()); }

// Parameters of a rank that holds layers [first, first + count). The head's tied copy takes memory unless the embedding is there too.
StageParameters stage_parameters(const Scenario& scenario, std::int64_t first, std::int64_t count) {
  const ModelShape& model = scenario.model;
  StageParameters held;
  const bool everywhere = batch_on_every_rank(scenario), holds_embedding = first == 0 || everywhere;
  if (holds_embedding) append(held.ends, embedding_parameters(model));
  for (std::int64_t layer = first; layer < first + count; ++layer)
    append(held.layers, attention_parameters(model, layer)), append(held.layers, mlp_parameters(model, layer));
  if (first + count < model.layers && !everywhere) return held;
  for (const Parameter& parameter : head_parameters(model)) {
    if (!parameter.tied || !holds_embedding) held.ends.push_back(parameter);
  }
  return held;
}

struct ClosedForm {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0;
};

std::int64_t activation_bytes(const Scenario& scenario, std::int64_t stage, std::int64_t stages, std::int64_t layers) {
  const std::int64_t together = pipelined_together(scenario);
  const std::int64_t in_flight = scenario.order == "gpipe" ? together : std::min(together, stages - stage);
  const BatchShape batch = layer_batch(scenario);
  const std::int64_t layer = layer_activation_bytes(scenario.model, batch, scenario.compute).value;
  if (scenario.recompute == RecomputeMode::None) return in_flight * layers * layer;
  const std::int64_t input = batch.micro_batch * batch.sequence * scenario.model.hidden * size_of(scenario.compute);
  const std::int64_t group = scenario.recompute == RecomputeMode::Every ? scenario.recompute_every : 1;
  const std::int64_t kept = scenario.recompute == RecomputeMode::Sqrt ? sqrt_list(static_cast<std::int32_t>(layers)).back().slot + 1
                                                                      : (layers + group - 1) / group;
  return in_flight * kept * input + std::min(group, layers) * layer;
}

// Adds what elements that lie on so many ranks take on one of them, sharded by a ZeRO level; padding and transients aside.
void add_state(ClosedForm& form, const Scenario& scenario, const std::vector<Parameter>& held, std::int64_t replicas, int zero) {
  const std::int64_t count = elements(held), whole = persistent(held, scenario.zero);
  const std::int64_t ranks = scenario.zero.shard_ranks > 0 ? scenario.zero.shard_ranks : replicas;
  const auto share = [&](std::int64_t bytes, int level) { return zero >= level ? bytes / ranks : bytes; };
  form.parameters += share((count - whole) * size_of(scenario.compute), 3) + whole * size_of(scenario.compute);
  form.gradients += share(count * size_of(scenario.gradient), 2);
  if (scenario.optimizer == OptimizerKind::Adam && !scenario.offload) form.optimizer += share(count * 3 * size_of(scenario.master), 1);
}

ClosedForm closed_form(const Scenario& scenario, const std::vector<std::int64_t>& layers, std::size_t stage) {
  const std::int64_t first = std::accumulate(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(stage), std::int64_t{0});
  const StageParameters held = stage_parameters(scenario, first, layers[stage]);
  ClosedForm form;
  add_state(form, scenario, held.layers, axis_size(scenario.mesh, "dp"), scenario.zero.level);
  add_state(form, scenario, held.ends, batch_ranks(scenario), scenario.zero.ends == ZeroEnds::Sharded ? scenario.zero.level : 0);
  form.activations = activation_bytes(scenario, static_cast<std::int64_t>(stage), static_cast<std::int64_t>(layers.size()), layers[stage]);
  return form;
}

std::int64_t sum_of(const ProgramPeak& peak, std::initializer_list<Category> categories) {
  std::int64_t sum = 0;
  for (const Category category : categories) sum += peak.by_category[static_cast<std::size_t>(category)].value;
  return sum;
}

void add_stage(Table& table, std::int64_t stage, const ClosedForm& form, const ProgramPeak& peak) {
  const std::int64_t parameters = sum_of(peak, {Category::Param, Category::GatheredParam});
  const std::int64_t gradients = sum_of(peak, {Category::Gradient, Category::GradientShard});
  const std::int64_t optimizer = sum_of(peak, {Category::Optimizer});
  const std::int64_t activations = sum_of(peak, {Category::Activation, Category::Recompute});
  const auto row = [&](const char* what, std::int64_t closed, std::int64_t derived) {
    table.rows.push_back({number_cell(stage), text_cell(what), closed < 0 ? Table::Cell{} : number_cell(closed), number_cell(derived)});
  };
  row("parameters", form.parameters, parameters);
  row("gradients", form.gradients, gradients);
  row("optimizer", form.optimizer, optimizer);
  row("activations", form.activations, activations);
  row("other", -1, peak.bytes.value - parameters - gradients - optimizer - activations);
  row("peak", -1, peak.bytes.value);
}

}  // namespace

ProgramPeak device_peak(const Schedule& schedule, ProgramId id) {
  const Program& program = schedule.programs[id.value];
  const std::vector<Bytes> curve = allocated_curve(schedule, program, Space::Device);
  ProgramPeak peak;
  peak.program = id;
  peak.bytes = resident_bytes(program, Space::Device);
  for (std::size_t k = 0; k < curve.size(); ++k) {
    if (curve[k] <= peak.bytes) continue;
    peak.bytes = curve[k];
    peak.op = OpId(program.first_op.value + static_cast<std::uint32_t>(k));
  }
  const std::vector<Lifetime> lives = lifetimes(schedule, program);
  const std::uint32_t at = peak.op.valid() ? peak.op.value - program.first_op.value : Lifetime{}.first;
  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    const bool alive =
        buffer.resident || (peak.op.valid() && lives[b].first <= at && at <= lives[b].last && lives[b].first != Lifetime{}.first);
    if (alive && buffer.space == Space::Device) peak.by_category[static_cast<std::size_t>(buffer.category)] += buffer.bytes;
  }
  return peak;
}

ProgramPeak largest_device_peak(const Schedule& schedule) {
  ProgramPeak largest;
  for (std::uint32_t p = 0; p < schedule.programs.size(); ++p) {
    const ProgramPeak peak = device_peak(schedule, ProgramId(p));
    if (p == 0 || peak.bytes > largest.bytes) largest = peak;
  }
  return largest;
}

Table memory_table(const Scenario& scenario, const Schedule& schedule) {
  const std::size_t pipeline = scenario.mesh.axis("pp").value_or(scenario.mesh.axes.size());
  const auto stages = pipeline < scenario.mesh.axes.size() ? static_cast<std::int32_t>(scenario.mesh.axes[pipeline].size) : 1;
  const std::vector<std::int64_t> layers = stage_layers(scenario, stages);
  Table table{{"stage", "memory", "closed_form_bytes", "derived_bytes"}, {}};
  for (std::uint32_t p = 0; p < schedule.programs.size(); ++p) {
    const Program& program = schedule.programs[p];
    if (program.stages.size() != 1 || static_cast<std::size_t>(program.stages[0]) >= layers.size()) continue;
    const auto stage = static_cast<std::size_t>(program.stages[0]);
    add_stage(table, program.stages[0], closed_form(scenario, layers, stage), device_peak(schedule, ProgramId(p)));
  }
  return table;
}

}  // namespace steptwin
