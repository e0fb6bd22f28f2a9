#include "exec/cpu/plain_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "exec/cpu/data_loader.h"
#include "exec/ops/compute.h"
#include "exec/ops/dropout.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

constexpr double kNormEpsilon = 1e-5, kRopeTheta = 10000;
constexpr double kLearningRate = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;
constexpr std::int64_t kTokensAtOnce = 8192;  // of the batch under one autograd graph; bounds its memory, larger batches take several

[[noreturn]] void refuse(const std::string& problem) {
  throw EnvironmentError(EnvironmentError::Kind::Device, "the plain model cannot be built from this schedule: " + problem);
}

at::ScalarType scalar_type(DType dtype) {
  if (dtype == DType::Fp32) return at::kFloat;
  if (dtype == DType::Bf16) return at::kBFloat16;
  throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("{} is not computed on the CPU", name_of(dtype)),
                         "set precision.compute to bf16 or fp32");
}

// What the schedule says about the model.
struct ModelFacts {
  std::map<std::string, TensorSpec> parameters;
  std::set<std::string> trained;  // their names: those that have a gradient
  std::int64_t heads = 0, layers = 0, layers_per_block = 1;
  bool optimizer = false, master = false, overflow_check = false;
  double dropout = 0;
  bool drops_probabilities = false, inspects = false;
  std::int64_t micro_batch = 1;
  std::optional<double> clip;
  double loss_scale = 1, loss_scale_factor = 1, loss_scale_steps = 1e18;  // without loss scaling: 1 for ever
};

void read_parameters(const Schedule& schedule, ModelFacts& facts) {
  for (const Program& program : schedule.programs) {
    for (const Buffer& buffer : program.buffers) {
      if (buffer.category == Category::Optimizer && schedule.name(buffer.name).ends_with(".master")) facts.master = true;
      if (buffer.resident && buffer.layout.valid() && (buffer.category == Category::Gradient || buffer.category == Category::GradientShard))
        for (const TensorSpec& tensor : schedule.layouts[buffer.layout.value].tensors)
          facts.trained.insert(drawn_as(schedule, tensor.name));
      if (buffer.category != Category::Param || !buffer.resident || !buffer.layout.valid()) continue;
      for (const TensorSpec& tensor : schedule.layouts[buffer.layout.value].tensors) {
        if (drawn_as(schedule, tensor.name) == tensor.name) facts.parameters.emplace(tensor.name, tensor);
      }
    }
  }
}

ModelFacts facts_of(const Schedule& schedule) {
  ModelFacts facts;
  read_parameters(schedule, facts);
  for (const Layout& layout : schedule.layouts) {
    for (const TensorSpec& tensor : layout.tensors) {
      if ((tensor.name == "lse" || tensor.name == "probabilities") && tensor.shape.size() > 1) facts.heads = tensor.shape[1];
      if (tensor.name == "core.mask") facts.drops_probabilities = true;
    }
  }
  while (facts.parameters.contains(fmt::format("layers.{}.attn.norm.weight", facts.layers))) ++facts.layers;
  const auto count = [&](const char* name, std::int64_t otherwise) {
    const double value = schedule.constant(name).value_or(static_cast<double>(otherwise));
    return static_cast<std::int64_t>(std::clamp(value, 0.0, 1e6));
  };
  facts.layers = count("layers", facts.layers), facts.layers_per_block = count("layers_per_block", 1);
  if (facts.heads == 0 || facts.layers == 0 || facts.layers_per_block == 0 || !facts.parameters.contains("embed.token.weight"))
    refuse("it is not one of a whole GPT or Llama model");
  const auto has_op = [&](std::string_view segment) {
    return std::any_of(schedule.ops.begin(), schedule.ops.end(), [&](const Op& op) { return schedule.name(op.label.segment) == segment; });
  };
  facts.optimizer = has_op("adam"), facts.overflow_check = has_op("check");
  facts.inspects = has_op("inspect"), facts.micro_batch = data_shape(schedule).micro_batch;
  facts.dropout = schedule.constant("dropout").value_or(0);
  facts.clip = schedule.constant("clip");
  facts.loss_scale = schedule.constant("loss_scale").value_or(1);
  facts.loss_scale_factor = schedule.constant("loss_scale_factor").value_or(1);
  facts.loss_scale_steps = schedule.constant("loss_scale_steps").value_or(1e18);
  return facts;
}

struct Parameter {
  at::Tensor value;                  // leaf, compute type
  at::Tensor weight, first, second;  // fp32: the master (or the value widened) and Adam's moments
  at::Tensor gradient;               // fp32, of the step
};

class PlainModel {
 public:
  PlainModel(const Schedule& schedule, std::uint64_t seed) : facts_(facts_of(schedule)), seed_(seed), scale_(facts_.loss_scale) {
    for (const auto& [name, tensor] : facts_.parameters) parameters_.emplace(name, make(name, tensor, seed, facts_.trained.contains(name)));
  }
  // Mean loss of the batch [n, s], whose rows are the samples from first_sample on; its gradients, times the loss scale, are left in the
  // parameters.
  double gradients(const at::Tensor& tokens, const at::Tensor& targets, std::int64_t first_sample);
  // Takes the loss scale out of the gradients and clips them; false: they overflowed, and the scale is lower now.
  bool prepare_gradients();
  void adam_step();
  NamedValues gradient_values() const;
  NamedValues frozen_values() const;  // of the parameters without a gradient
  // Of the inputs of layers, in the order of samples, since the last call; empty: they are not inspected.
  NamedValues take_hidden() { return std::exchange(hidden_, {}); }
  bool has_optimizer() const { return facts_.optimizer; }

 private:
  static Parameter make(const std::string& name, const TensorSpec& tensor, std::uint64_t seed, bool trained);
  const at::Tensor& at(const std::string& name) const {
    const auto found = parameters_.find(name);
    if (found == parameters_.end()) refuse("it has no parameter " + name);
    return found->second.value;
  }
  bool has(const std::string& name) const { return parameters_.contains(name); }
  at::Tensor linear(const std::string& name, const at::Tensor& x) const;
  at::Tensor norm(const std::string& name, const at::Tensor& x) const;
  at::Tensor dropout(const MaskState& masks, const at::Tensor& x) const;
  MaskState masks(const std::string& place, std::int64_t first_sample) const { return {mask_key(place, seed_), first_sample}; }
  at::Tensor attention(const std::string& prefix, const at::Tensor& x, const MaskState& own) const;
  at::Tensor mlp(const std::string& prefix, const at::Tensor& x, const MaskState& own) const;
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, std::int64_t first_sample) const;
  void inspect(const std::string& name, const at::Tensor& x) const;

  ModelFacts facts_;
  std::map<std::string, Parameter> parameters_;
  std::uint64_t seed_ = 1;
  std::int64_t step_ = 0;  // that Adam has made
  double scale_ = 1, good_steps_ = 0;
  mutable NamedValues hidden_;
};

// With a master copy the values are drawn in fp32 and rounded to the compute type.
Parameter PlainModel::make(const std::string& name, const TensorSpec& tensor, std::uint64_t seed, bool trained) {
  Parameter parameter;
  TensorSpec wide = tensor;
  wide.dtype = DType::Fp32;
  parameter.weight = at::empty(tensor.shape, at::TensorOptions(at::kFloat));
  initialise_parameter(name, wide, static_cast<std::byte*>(parameter.weight.data_ptr()), seed);
  parameter.value = parameter.weight.to(scalar_type(tensor.dtype)).clone().requires_grad_(trained);
  parameter.first = at::zeros_like(parameter.weight);
  parameter.second = at::zeros_like(parameter.weight);
  return parameter;
}

at::Tensor PlainModel::linear(const std::string& name, const at::Tensor& x) const {
  const at::Tensor y = at::matmul(x, at(name + ".weight").t());
  return has(name + ".bias") ? y + at(name + ".bias") : y;
}

at::Tensor PlainModel::norm(const std::string& name, const at::Tensor& x) const {
  const at::Tensor& weight = at(name + ".weight");
  if (has(name + ".bias")) return at::layer_norm(x, {x.size(-1)}, weight, at(name + ".bias"), kNormEpsilon);
  const at::Tensor wide = x.to(at::kFloat);
  return (wide / (wide.pow(2).mean(-1, true) + kNormEpsilon).sqrt()).to(x.scalar_type()) * weight;
}

// x [b, heads, s, d]: x cos + rotate_half(x) sin.
at::Tensor rotary(const at::Tensor& x) {
  const std::int64_t s = x.size(2), d = x.size(3);
  const at::Tensor frequency = at::exp(at::arange(d / 2, at::kDouble) * (-2.0 / static_cast<double>(d) * std::log(kRopeTheta)));
  const at::Tensor angle = at::arange(s, at::kDouble).unsqueeze(1) * frequency.unsqueeze(0);
  const at::Tensor both = at::cat({angle, angle}, 1);
  const auto halves = x.to(at::kFloat).chunk(2, -1);
  const at::Tensor turned = at::cat({-halves[1], halves[0]}, -1);
  return (x.to(at::kFloat) * both.cos().to(at::kFloat) + turned * both.sin().to(at::kFloat)).to(x.scalar_type());
}

// The masks are drawn as the layers draw them; what is done with them is autograd's.
at::Tensor PlainModel::dropout(const MaskState& state, const at::Tensor& x) const {
  if (facts_.dropout == 0) return x;
  const at::Tensor mask = at::empty(x.sizes(), at::TensorOptions(at::kByte));
  draw_mask(state, facts_.dropout, mask);
  return at::where(mask.to(at::kBool), x / (1 - facts_.dropout), at::zeros({}, x.options().requires_grad(false)));
}

at::Tensor PlainModel::attention(const std::string& prefix, const at::Tensor& x, const MaskState& own) const {
  const std::int64_t b = x.size(0), s = x.size(1), width = at(prefix + ".out.weight").size(1), d = width / facts_.heads;
  const at::Tensor normal = norm(prefix + ".norm", x);
  const auto split = [&](const at::Tensor& t) { return t.reshape({b, s, t.size(-1) / d, d}).transpose(1, 2); };
  at::Tensor q, k, v;
  if (has(prefix + ".qkv.weight")) {
    const at::Tensor qkv = linear(prefix + ".qkv", normal);
    const std::int64_t kv = (qkv.size(-1) - width) / 2;
    const auto parts = at::split_with_sizes(qkv, {width, kv, kv}, -1);
    q = split(parts[0]), k = split(parts[1]), v = split(parts[2]);
  } else {
    q = rotary(split(linear(prefix + ".q", normal))), k = rotary(split(linear(prefix + ".k", normal))),
    v = split(linear(prefix + ".v", normal));
  }
  const std::int64_t group = q.size(1) / k.size(1);
  k = k.repeat_interleave(group, 1), v = v.repeat_interleave(group, 1);
  const at::Tensor hidden = at::full({s, s}, -std::numeric_limits<double>::infinity(), x.options().requires_grad(false)).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(d)) + hidden;
  const at::Tensor p = at::softmax(scores, -1);
  const at::Tensor taken = facts_.drops_probabilities ? dropout(of_probabilities(own), p) : p;
  const at::Tensor out = at::matmul(taken, v).transpose(1, 2).reshape({b, s, width});
  return x + dropout(own, linear(prefix + ".out", out));
}

at::Tensor PlainModel::mlp(const std::string& prefix, const at::Tensor& x, const MaskState& own) const {
  const at::Tensor normal = norm(prefix + ".norm", x);
  const at::Tensor up = linear(prefix + ".up", normal);
  const at::Tensor active = has(prefix + ".gate.weight") ? at::silu(linear(prefix + ".gate", normal)) * up : at::gelu(up, "tanh");
  return x + dropout(own, linear(prefix + ".down", active));
}

at::Tensor PlainModel::loss(const at::Tensor& tokens, const at::Tensor& targets, std::int64_t first_sample) const {
  at::Tensor x = at::embedding(at("embed.token.weight"), tokens);
  if (has("embed.position.weight")) x = x + at::embedding(at("embed.position.weight"), at::arange(tokens.size(1), at::kLong));
  x = dropout(masks("embed", first_sample), x);
  for (std::int64_t layer = 0; layer < facts_.layers; ++layer) {
    inspect(fmt::format("layers.{}.input", layer), x);
    const std::int64_t block = layer - layer % facts_.layers_per_block;
    x = attention(fmt::format("layers.{}.attn", block), x, masks(fmt::format("layers.{}.attn", layer), first_sample));
    x = mlp(fmt::format("layers.{}.mlp", block), x, masks(fmt::format("layers.{}.mlp", layer), first_sample));
  }
  const at::Tensor& table = at(has("head.weight") ? "head.weight" : "embed.token.weight");
  const at::Tensor logits = at::matmul(norm("head.norm", x), table.t()).to(at::kFloat);
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), targets.reshape({-1}));
}

// By micro-batches of the schedule.
void PlainModel::inspect(const std::string& name, const at::Tensor& x) const {
  if (!facts_.inspects) return;
  for (const at::Tensor& part : x.detach().to(at::kDouble).split(facts_.micro_batch)) {
    const double mean = part.mean().item<double>(), squares = (part - mean).square().sum().item<double>();
    const double deviation = std::sqrt(squares / static_cast<double>(part.numel() - 1));
    for (const double figure : {mean, deviation, part.min().item<double>(), part.max().item<double>()})
      hidden_[name].push_back(static_cast<float>(figure));
  }
}

double PlainModel::gradients(const at::Tensor& tokens, const at::Tensor& targets, std::int64_t first_sample) {
  torch::autograd::variable_list leaves;
  for (auto& [name, parameter] : parameters_) {
    parameter.gradient = at::zeros_like(parameter.weight);
    if (parameter.value.requires_grad()) leaves.push_back(parameter.value);
  }
  const std::int64_t samples = tokens.size(0), micro_batch = facts_.micro_batch;
  const std::int64_t at_once = std::max<std::int64_t>(1, kTokensAtOnce / tokens.size(1) / micro_batch) * micro_batch;
  double mean = 0;
  for (std::int64_t first = 0; first < samples; first += at_once) {
    const std::int64_t count = std::min(at_once, samples - first);
    const double share = static_cast<double>(count) / static_cast<double>(samples);
    const at::Tensor part = loss(tokens.narrow(0, first, count), targets.narrow(0, first, count), first_sample + first) * share;
    mean += part.item<double>();
    if (leaves.empty()) continue;
    const auto slopes = torch::autograd::grad({part * scale_}, leaves);
    std::size_t i = 0;
    for (auto& [name, parameter] : parameters_)
      if (parameter.value.requires_grad()) parameter.gradient += slopes[i++].to(at::kFloat);
  }
  return mean;
}

bool PlainModel::prepare_gradients() {
  const c10::AutoGradMode no_gradients(false);
  bool finite = true;
  double squares = 0;
  for (auto& [name, p] : parameters_) finite = finite && (!facts_.overflow_check || at::isfinite(p.gradient).all().item<bool>());
  const double scale = scale_;
  good_steps_ = finite ? good_steps_ + 1 : 0;
  if (!finite) scale_ = std::max(1.0, scale_ / facts_.loss_scale_factor);
  if (good_steps_ >= facts_.loss_scale_steps) scale_ *= facts_.loss_scale_factor, good_steps_ = 0;
  if (!finite) return false;
  for (auto& [name, p] : parameters_) {
    p.gradient = p.gradient / scale;
    squares += p.gradient.to(at::kDouble).square().sum().item<double>();
  }
  const double factor = facts_.clip ? *facts_.clip / (std::sqrt(squares) + 1e-6) : 1;
  for (auto& [name, p] : parameters_)
    if (factor < 1) p.gradient = p.gradient * factor;
  return true;
}

void PlainModel::adam_step() {
  const c10::AutoGradMode no_gradients(false);
  ++step_;
  const auto steps = static_cast<double>(step_);
  for (auto& [name, p] : parameters_) {
    if (!p.value.requires_grad()) continue;
    if (!facts_.master) p.weight = p.value.detach().to(at::kFloat).clone();
    p.first = kBeta1 * p.first + (1 - kBeta1) * p.gradient;
    p.second = kBeta2 * p.second + (1 - kBeta2) * p.gradient.square();
    const at::Tensor mean = p.first / (1 - std::pow(kBeta1, steps)), square = p.second / (1 - std::pow(kBeta2, steps));
    p.weight = p.weight - kLearningRate * mean / (square.sqrt() + kEpsilon);
    p.value = p.weight.to(p.value.scalar_type()).clone().requires_grad_(true);
  }
}

std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kFloat).contiguous();
  const auto* first = flat.data_ptr<float>();
  return {first, first + flat.numel()};
}

NamedValues PlainModel::gradient_values() const {
  NamedValues values;
  for (const auto& [name, parameter] : parameters_)
    if (parameter.value.requires_grad()) values.emplace(name, values_of(parameter.gradient));
  return values;
}

NamedValues PlainModel::frozen_values() const {
  NamedValues values;
  for (const auto& [name, parameter] : parameters_)
    if (!parameter.value.requires_grad()) values.emplace(name, values_of(parameter.value));
  return values;
}

// All samples of a step, data-parallel ranks and micro-batches alike.
at::Tensor batch_ids(const DataLoader& loader, std::int64_t step, Ids which) {
  const DataShape& shape = loader.shape();
  at::Tensor ids = at::empty({shape.samples_per_step(), shape.sequence}, at::TensorOptions(at::kLong));
  auto* row = ids.data_ptr<std::int64_t>();
  for (std::int64_t micro_batch = 0; micro_batch < shape.micro_batches; ++micro_batch) {
    for (std::int64_t rank = 0; rank < shape.data_parallel; ++rank) {
      for (std::int64_t sample = 0; sample < shape.micro_batch; ++sample, row += shape.sequence)
        loader.fill_row(sample_number(shape, step, micro_batch, rank, sample), which, row);
    }
  }
  return ids;
}

}  // namespace

ExecutionResult run_plain_model(const Schedule& schedule, const ExecuteOptions& options) {
  const DataShape shape = data_shape(schedule);
  if (shape.samples_per_step() == 0) refuse("it has no token buffers");
  const DataLoader loader(options.text, shape, options.seed, options.text_name);
  PlainModel model(schedule, options.seed);
  ExecutionResult result;
  result.environment_json = library_versions();
  const std::uint32_t repetitions = options.warm_up + options.steps;
  for (std::uint32_t step = 0; step < repetitions; ++step) {
    if (options.stop != nullptr && options.stop->load()) break;
    const double loss =
        model.gradients(batch_ids(loader, step, Ids::Tokens), batch_ids(loader, step, Ids::Targets), sample_number(shape, step, 0, 0, 0));
    if (step >= options.warm_up) result.losses.push_back(loss);
    const NamedValues hidden = model.take_hidden();
    if (step == 0) result.hidden = hidden;
    const bool finite = model.prepare_gradients();
    if (step == 0 && options.keep_gradients) result.gradients = model.gradient_values();
    if (model.has_optimizer() && finite) model.adam_step();
  }
  if (options.keep_gradients) result.parameters = {model.frozen_values()};
  return result;
}

}  // namespace steptwin
