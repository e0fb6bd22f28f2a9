#include "exec/cpu/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "exec/cpu/state_files.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

bool is_ids(const Schedule& schedule, const Buffer& buffer, std::string_view name) {
  return buffer.resident && buffer.category == Category::Input && buffer.layout.valid() && schedule.name(buffer.name) == name;
}

// A schedule text may say anything; what is copied into and out of these buffers has one form.
struct Form {
  DType dtype;
  std::vector<std::int64_t> shape;
  const char* words;
};
void require_form(const Schedule& schedule, const Program& program, const Buffer& buffer, const Form& form) {
  const Layout& layout = schedule.layouts[buffer.layout.value];
  if (layout.tensors.size() == 1 && layout.tensors[0].dtype == form.dtype && layout.tensors[0].shape == form.shape) return;
  throw EnvironmentError(EnvironmentError::Kind::Device,
                         fmt::format("program {} cannot be executed: layout {} must be {}", program.name, layout.name, form.words));
}

Form ids_form(const DataShape& shape) {
  return {DType::Int64, {shape.micro_batches, shape.micro_batch, shape.sequence},
          "one int64 tensor micro-batches x micro-batch size x sequence length, alike in all programs"};
}

}  // namespace

TrainingState::TrainingState(const Schedule& schedule, const Matching& matching, std::vector<RankMemory>& memories,
                             const ExecuteOptions& options)
    : schedule_(schedule),
      matching_(matching),
      memories_(memories),
      options_(options),
      loader_(options.text, data_shape(schedule), options.seed, options.text_name),
      losses_(matching.ranks.size()),
      gradients_(matching.ranks.size()),
      hidden_(matching.ranks.size()),
      ranges_(schedule, matching),
      skipped_(matching.ranks.size()) {
  for (const Program& p : schedule.programs)
    for (const Buffer& buffer : p.buffers)
      if (is_ids(schedule, buffer, "tokens") || is_ids(schedule, buffer, "targets"))
        require_form(schedule, p, buffer, ids_form(loader_.shape()));
  for (std::uint32_t r = 0; r < losses_.size(); ++r) {
    batch_ranks_.push_back(batch_rank(schedule, matching.ranks[r].rank));
    find_losses(r);
  }
}

const Program& TrainingState::program(std::uint32_t rank) const {
  return schedule_.programs[matching_.tables[matching_.ranks[rank].tables].program.value];
}

void TrainingState::find_losses(std::uint32_t rank) {
  const Program& p = program(rank);
  for (std::uint32_t op = 0; op < p.op_count; ++op) {
    const OpId id(p.first_op.value + op);
    if (schedule_.ops[id.value].label.phase != Phase::Forward || !std::holds_alternative<Compute>(schedule_.ops[id.value].body)) continue;
    for (const Access& access : schedule_.accesses_of(id)) {
      const Buffer& buffer = p.buffers[access.buffer.value];
      if (access.mode != AccessMode::Write || !buffer.layout.valid() || schedule_.layouts[buffer.layout.value].name != "loss") continue;
      require_form(schedule_, p, buffer, {DType::Fp32, {1}, "one fp32 value"});
      losses_[rank].ops.push_back(op);
    }
  }
  losses_[rank].steps.assign(options_.warm_up + std::size_t{options_.steps}, std::vector<float>(losses_[rank].ops.size()));
}

void TrainingState::initialise_parameters() {
  if (!options_.load.empty()) return load();
  set_up_loss_scale();
  for (std::uint32_t r = 0; r < memories_.size(); ++r) {
    memories_[r].when_lazy_begins([this, r](std::uint32_t buffer) { initialise(r, buffer); });
    for (std::uint32_t b = 0; b < program(r).buffers.size(); ++b)
      if (memories_[r].resident(b) != nullptr) initialise(r, b);
  }
}

void TrainingState::initialise(std::uint32_t rank, std::uint32_t b) const {
  const Buffer& buffer = program(rank).buffers[b];
  const bool master = buffer.category == Category::Optimizer && schedule_.name(buffer.name).ends_with(".master");
  if (!buffer.layout.valid() || (buffer.category != Category::Param && !master)) return;
  const Layout& layout = schedule_.layouts[buffer.layout.value];
  for (const TensorPiece& piece : tensor_pieces(layout, ranges_.of(rank, buffer, {}))) {
    if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed)) return;
    const TensorSpec& tensor = layout.tensors[piece.tensor];
    std::vector<std::byte> values(static_cast<std::size_t>(tensor.bytes().value));
    initialise_parameter(drawn_as(schedule_, tensor.name), tensor, values.data(), options_.seed);
    const std::int64_t size = size_of(tensor.dtype);
    std::byte* const to = memories_[rank].resident(b) + piece.at;
    memories_[rank].source().write(to, values.data() + piece.first_element * size, piece.elements * size);
  }
}

// What is loaded is there from the start, lazy or not.
void TrainingState::load() {
  for (std::uint32_t r = 0; r < memories_.size(); ++r)
    for (std::uint32_t b = 0; b < program(r).buffers.size(); ++b)
      if (program(r).buffers[b].lazy) memories_[r].allocate(b);
  earlier_steps_ = load_state(schedule_, matching_, memories_, options_.load);
  set_up_loss_scale();
}

std::optional<std::uint32_t> TrainingState::loss_scale_buffer(std::uint32_t rank) const {
  const Program& p = program(rank);
  for (std::uint32_t b = 0; b < p.buffers.size(); ++b) {
    const Buffer& buffer = p.buffers[b];
    const bool found = buffer.resident && buffer.layout.valid() && schedule_.layouts[buffer.layout.value].name == "loss_scale";
    if (found && buffer.bytes == Bytes(sizeof(std::array<float, 3>))) return b;
  }
  return std::nullopt;
}

std::array<float, 3> TrainingState::loss_scale(std::uint32_t rank, std::uint32_t buffer) const {
  std::array<float, 3> state{};
  memories_[rank].source().read(reinterpret_cast<std::byte*>(state.data()), memories_[rank].resident(buffer), sizeof state);
  return state;
}

// Of a checkpoint the loss scale is part of the state; else it starts as the schedule says.
void TrainingState::set_up_loss_scale() {
  for (std::uint32_t r = 0; r < memories_.size(); ++r) {
    const auto buffer = loss_scale_buffer(r);
    if (!buffer) continue;
    const std::array<float, 3> start = {static_cast<float>(schedule_.constant("loss_scale").value_or(1)), 0, 0};
    if (options_.load.empty())
      memories_[r].source().write(memories_[r].resident(*buffer), reinterpret_cast<const std::byte*>(start.data()), sizeof start);
    else
      skipped_[r].steps = static_cast<std::int64_t>(loss_scale(r, *buffer)[2]);
  }
}

std::vector<RunFact> TrainingState::facts() const {
  const auto buffer = memories_.empty() ? std::nullopt : loss_scale_buffer(0);
  if (!buffer) return {};
  const std::array<float, 3> state = loss_scale(0, *buffer);
  return {{"loss_scale", "loss scale", "1", static_cast<double>(state[0])}, {"skipped_steps", "skipped steps", "1", static_cast<double>(state[2])}};
}

void TrainingState::save() const {
  if (options_.save.empty()) return;
  save_state(schedule_, matching_, memories_, options_.save, earlier_steps_ + options_.warm_up + options_.steps);
}

void TrainingState::begin_step(std::uint32_t rank, std::uint32_t step) {
  const Program& p = program(rank);
  for (std::uint32_t b = 0; b < p.buffers.size(); ++b) {
    for (const Ids which : {Ids::Tokens, Ids::Targets}) {
      if (!is_ids(schedule_, p.buffers[b], name_of(which))) continue;
      std::vector<std::int64_t> ids(static_cast<std::size_t>(p.buffers[b].bytes.value) / sizeof(std::int64_t));
      loader_.fill_step(earlier_steps_ + step, batch_ranks_[rank].number(), which, ids.data());
      memories_[rank].source().write(memories_[rank].resident(b), reinterpret_cast<const std::byte*>(ids.data()), p.buffers[b].bytes.value);
    }
  }
}

StepContext TrainingState::context(std::uint32_t rank, std::uint32_t step) const {
  StepContext context;
  const DataShape& shape = loader_.shape();
  if (shape.micro_batches > 0) context.loss_scale = 1.0 / static_cast<double>(shape.micro_batches * shape.data_parallel);
  context.seed = options_.seed;
  const BatchRank& own = batch_ranks_[rank];
  const std::int64_t batch = std::max<std::int64_t>(shape.micro_batch, 1);
  context.samples = {batch, own.replicas * batch, own.replica * batch};
  context.first_place = (earlier_steps_ + step) * shape.micro_batches * own.stages * batch;
  context.batch_ranks = own.stages, context.batch_rank = own.stage;
  const std::lock_guard lock(skipped_mutex_);
  context.step = earlier_steps_ + step + 1 - skipped_[rank].steps;
  return context;
}

// Adam counts the steps that it makes. All its ops of a step share one guard, and the ranks one decision.
void TrainingState::guarded_off(std::uint32_t rank, std::uint32_t step, std::uint32_t op) {
  const Op& o = schedule_.ops[program(rank).first_op.value + op];
  if (o.label.phase != Phase::Update || schedule_.name(o.label.segment) != "adam") return;
  const std::lock_guard lock(skipped_mutex_);
  if (skipped_[rank].last == step) return;
  skipped_[rank].last = step;
  ++skipped_[rank].steps;
}

// The optimizer reads gradients after all reductions and scalings.
void TrainingState::before_op(std::uint32_t rank, std::uint32_t step, std::uint32_t op) {
  if (!captures(step)) return;
  const Program& p = program(rank);
  const Label& label = schedule_.ops[p.first_op.value + op].label;
  if (label.phase != Phase::Update || schedule_.name(label.segment) != "adam") return;
  const auto operands = memories_[rank].operands(op);
  const auto accesses = schedule_.accesses_of(OpId(p.first_op.value + op));
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    const Buffer& buffer = p.buffers[accesses[i].buffer.value];
    const bool gradient = buffer.category == Category::Gradient || buffer.category == Category::GradientShard;
    if (!gradient || accesses[i].mode != AccessMode::Read || !buffer.layout.valid()) continue;
    if (accesses[i].part.kind == Part::Kind::Tensor) continue;
    const std::lock_guard lock(gradient_mutex_);
    const ByteRange range = ranges_.of(rank, buffer, accesses[i].part);
    read_shares(rank, schedule_.layouts[buffer.layout.value], range, operands[i].data, gradients_[rank]);
  }
}

void TrainingState::after_op(std::uint32_t rank, std::uint32_t step, std::uint32_t op) {
  RankLosses& losses = losses_[rank];
  const auto at = std::lower_bound(losses.ops.begin(), losses.ops.end(), op);
  if (at == losses.ops.end() || *at != op) return;
  for (const BoundAccess& access : memories_[rank].operands(op)) {
    if (access.mode != AccessMode::Write || access.layout == nullptr || access.layout->name != "loss") continue;
    float& loss = losses.steps[step][static_cast<std::size_t>(at - losses.ops.begin())];
    memories_[rank].source().read_by_end_of_step(reinterpret_cast<std::byte*>(&loss), access.data, sizeof loss);
  }
}

// Without an optimizer the gradients stand in their resident buffers at the end of the step.
void TrainingState::end_step(std::uint32_t rank, std::uint32_t step) {
  if (step == 0) read_hidden_states(rank);
  if (!captures(step)) return;
  const std::lock_guard lock(gradient_mutex_);
  if (!gradients_[rank].empty()) return;
  const Program& p = program(rank);
  for (std::uint32_t b = 0; b < p.buffers.size(); ++b) {
    const Buffer& buffer = p.buffers[b];
    const bool gradient = buffer.category == Category::Gradient || buffer.category == Category::GradientShard;
    if (memories_[rank].resident(b) == nullptr || !gradient || !buffer.layout.valid()) continue;
    read_shares(rank, schedule_.layouts[buffer.layout.value], ranges_.of(rank, buffer, {}), memories_[rank].resident(b), gradients_[rank]);
  }
}

// Figures of the rank's micro-batches, into their places among those of all ranks with samples of their own.
void TrainingState::read_hidden_states(std::uint32_t rank) {
  const Program& p = program(rank);
  for (std::uint32_t b = 0; b < p.buffers.size(); ++b) {
    const Buffer& buffer = p.buffers[b];
    if (!buffer.resident || !buffer.layout.valid() || schedule_.layouts[buffer.layout.value].name != "hidden.figures") continue;
    for (const TensorSpec& tensor : schedule_.layouts[buffer.layout.value].tensors) {
      const std::int64_t micro_batches = tensor.shape.at(0), figures = tensor.shape.at(1);
      std::vector<float> all(static_cast<std::size_t>(micro_batches * figures));
      memories_[rank].source().read(reinterpret_cast<std::byte*>(all.data()), memories_[rank].resident(b) + tensor.offset.value,
                                    tensor.bytes().value);
      for (std::int64_t mb = 0; mb < micro_batches; ++mb) {
        const auto first = all.begin() + mb * figures;
        hidden_[rank].add(tensor.name, micro_batches * loader_.shape().data_parallel * figures,
                          (mb * loader_.shape().data_parallel + batch_ranks_[rank].number()) * figures, {first, first + figures});
      }
    }
  }
}

// `data` is the first byte of the range.
void TrainingState::read_shares(std::uint32_t rank, const Layout& layout, ByteRange range, const std::byte* data,
                                TensorShares& shares) const {
  for (const TensorPiece& piece : tensor_pieces(layout, range)) {
    const TensorSpec& tensor = layout.tensors[piece.tensor];
    const std::int64_t size = size_of(tensor.dtype);
    std::vector<std::byte> raw(static_cast<std::size_t>(piece.elements * size));
    memories_[rank].source().read(raw.data(), data + piece.at, piece.elements * size);
    std::vector<float> values(static_cast<std::size_t>(piece.elements));
    convert(reinterpret_cast<std::byte*>(values.data()), DType::Fp32, raw.data(), tensor.dtype, piece.elements);
    shares.add(tensor.name, tensor.bytes().value / size, piece.first_element, std::move(values));
  }
}

void TrainingState::fill_part(std::uint32_t rank, RankPart& part) const {
  part.losses = losses_[rank].steps;
  part.gradients = gradients_[rank];
  part.hidden = hidden_[rank];
  if (!options_.keep_gradients) return;
  const Program& p = program(rank);
  for (std::uint32_t b = 0; b < p.buffers.size(); ++b) {
    const Buffer& buffer = p.buffers[b];
    if (memories_[rank].resident(b) == nullptr || buffer.category != Category::Param || !buffer.layout.valid()) continue;
    const Layout& layout = schedule_.layouts[buffer.layout.value];
    read_shares(rank, layout, ranges_.of(rank, buffer, {}), memories_[rank].resident(b), part.parameters[b]);
  }
}

}  // namespace steptwin
