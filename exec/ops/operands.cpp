#include "exec/ops/operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

constexpr std::int64_t kStateBytes = sizeof(MaskState::key) + sizeof(MaskState::first_place);

const char* word(AccessMode mode) {
  switch (mode) {
    case AccessMode::Read:
      return "read";
    case AccessMode::Write:
      return "write";
    case AccessMode::Update:
      return "update";
    case AccessMode::Hold:
      return "hold";
  }
  return "";
}

bool is_gradient(const BoundAccess& access) {
  return access.category == Category::Gradient && (access.mode == AccessMode::Write || access.mode == AccessMode::Update);
}

// Parameters that are kept and gathered ones are operands alike.
bool is_parameter(const BoundAccess& access) { return access.category == Category::Param || access.category == Category::GatheredParam; }

bool is_of_forward(const BoundAccess& access) {
  return access.layout != nullptr && (access.layout->name.ends_with(".saved") || access.layout->name.ends_with(".passing"));
}

// Whether they may be one operand in several buffers.
bool continues(const BoundAccess& first, const BoundAccess& next) {
  if (next.mode != first.mode || next.part.kind != Part::Kind::Whole) return false;
  if (is_of_forward(first)) return is_of_forward(next);
  return is_parameter(first) ? is_parameter(next) : first.category == Category::Gradient && next.category == first.category;
}

// "out" names "layers.0.attn.out", not "layout".
bool names(std::string_view name, std::string_view end) {
  return name.ends_with(end) && (name.size() == end.size() || name[name.size() - end.size() - 1] == '.');
}

// Of a flat group that also holds parameters of another segment: "layers.0.mlp.norm.bias" is none of "attn".
bool belongs_elsewhere(std::string_view name, std::string_view segment) {
  for (const std::string_view other : {"embed", "attn", "mlp", "head"}) {
    if (other == segment) continue;
    if (name.starts_with(fmt::format("{}.", other)) || name.find(fmt::format(".{}.", other)) != std::string_view::npos) return true;
  }
  return false;
}

// "mask" is the tensor of that name before it is "core.mask".
const TensorSpec* tensor_named(const Layout& layout, std::string_view end, std::string_view segment) {
  for (const TensorSpec& tensor : layout.tensors) {
    if (tensor.name == end) return &tensor;
  }
  for (const TensorSpec& tensor : layout.tensors) {
    if (names(tensor.name, end) && !belongs_elsewhere(tensor.name, segment)) return &tensor;
  }
  return nullptr;
}

}  // namespace

void Operands::fail(const std::string& problem, const std::string& help) const {
  throw EnvironmentError(EnvironmentError::Kind::Device, "it cannot be executed: " + problem, help);
}

const BoundAccess* Operands::next() {
  while (next_ < accesses_.size() && accesses_[next_].mode == AccessMode::Hold) ++next_;
  return next_ < accesses_.size() ? &accesses_[next_] : nullptr;
}

const BoundAccess& Operands::take(const char* what, AccessMode mode) {
  const BoundAccess* access = next();
  if (access == nullptr) fail(fmt::format("operand {} ({}) is missing", what, word(mode)));
  if (access->mode != mode) fail(fmt::format("operand {} must be a {}, it is a {}", what, word(mode), word(access->mode)));
  next_ += run_of(*access).size();
  return *access;
}

std::span<const BoundAccess> Operands::run_of(const BoundAccess& operand) const {
  const auto rest = accesses_.subspan(static_cast<std::size_t>(&operand - accesses_.data()));
  std::size_t count = 1;
  while (operand.part.kind == Part::Kind::Whole && count < rest.size() && continues(operand, rest[count])) ++count;
  return rest.first(count);
}

std::string_view Operands::segment() const {
  const auto* compute = std::get_if<Compute>(&schedule_.ops[op_.value].body);
  return compute == nullptr || compute->part_count == 0 ? std::string_view() : schedule_.name(schedule_.parts_of(*compute).front().segment);
}

MaskState Operands::masks_of_forward(std::int64_t samples) const {
  const ComputePart& own = part();
  const bool layer = own.layer >= 0;
  const std::string where = layer ? fmt::format("layers.{}.{}", own.layer, segment()) : std::string(segment());
  const std::int64_t micro_batch = std::max(own.micro_batch, 0);
  const std::int64_t before = layer ? micro_batch : micro_batch * step_.batch_ranks + step_.batch_rank;  // pieces as large as this op's
  return {mask_key(where, step_.seed), step_.first_place + before * samples, step_.samples};
}

// The issuing thread reads and writes it.
void Operands::require_state(const BoundAccess& state) const {
  if (state.bytes != kStateBytes) fail(fmt::format("a random state of {} bytes", state.bytes));
  if (step_.device >= 0 && state.space == Space::Device) fail("a random state in device memory", "declare its buffer pageable");
}

MaskState Operands::masks_in(const BoundAccess& state) const {
  require_state(state);
  MaskState masks;
  masks.order = step_.samples;
  std::memcpy(&masks.key, state.data, sizeof masks.key);
  std::memcpy(&masks.first_place, state.data + sizeof masks.key, sizeof masks.first_place);
  return masks;
}

void Operands::save_masks(const MaskState& masks, const BoundAccess& state) const {
  require_state(state);
  std::memcpy(state.data, &masks.key, sizeof masks.key);
  std::memcpy(state.data + sizeof masks.key, &masks.first_place, sizeof masks.first_place);
}

const BoundAccess& Operands::gradient(const char* what) {
  if (!next_is_gradient()) fail(fmt::format("operand {} must be a gradient that is written or updated", what));
  const BoundAccess& first = accesses_[next_];
  next_ += run_of(first).size();
  return first;
}

bool Operands::next_is(AccessMode mode) {
  const BoundAccess* access = next();
  return access != nullptr && access->mode == mode;
}

bool Operands::next_is_gradient() {
  const BoundAccess* access = next();
  return access != nullptr && is_gradient(*access);
}

bool Operands::next_is_parameter() {
  const BoundAccess* access = next();
  return access != nullptr && access->mode == AccessMode::Read && is_parameter(*access);
}

bool Operands::next_is_of_forward() {
  const BoundAccess* access = next();
  return access != nullptr && is_of_forward(*access);
}

bool Operands::next_is_kept() {
  const BoundAccess* access = next();
  return access != nullptr && access->layout != nullptr && access->layout->name.ends_with(".kept");
}

bool Operands::next_is_laid_out_as(std::string_view layout) {
  const BoundAccess* access = next();
  return access != nullptr && access->layout != nullptr && access->layout->name == layout;
}

const ComputePart& Operands::part() const {
  const auto* compute = std::get_if<Compute>(&schedule_.ops[op_.value].body);
  invariant(compute != nullptr && compute->part_count == 1, "a segment op is a compute op of one part");
  return schedule_.parts_of(*compute).front();
}

double Operands::constant(std::string_view name) const {
  const std::optional<double> value = schedule_.constant(name);
  if (!value) fail(fmt::format("the schedule states no constant {}", name), fmt::format("add a line: constant {} VALUE", name));
  return *value;
}

void Operands::finish() {
  while (const BoundAccess* access = next()) {
    if (access->category != Category::Workspace || access->mode != AccessMode::Write)
      fail(fmt::format("operand {} is not part of the op's signature", next_));
    ++next_;
  }
}

Operands::Found Operands::find(const BoundAccess& operand, std::string_view suffix) const {
  if (operand.layout == nullptr) fail("an operand has no layout");
  const std::string own = fmt::format("{}.{}", segment(), suffix);
  const auto run = run_of(operand);
  for (const std::string_view end : {std::string_view(own), suffix}) {
    for (const BoundAccess& part : run) {
      const TensorSpec* tensor = part.layout == nullptr ? nullptr : tensor_named(*part.layout, end, segment());
      if (tensor != nullptr) return {&part, tensor};
    }
  }
  return {};
}

bool Operands::has(const BoundAccess& operand, std::string_view suffix) const { return find(operand, suffix).tensor != nullptr; }

TensorView Operands::tensor(const BoundAccess& operand, std::string_view suffix) const {
  const Found found = find(operand, suffix);
  if (found.tensor == nullptr) fail(fmt::format("layout {} has no tensor {}", operand.layout->name, suffix));
  if (found.operand->part.kind != Part::Kind::Whole || found.operand->shard)
    fail(fmt::format("tensor {} is asked of a part of its buffer", suffix));
  return bind(*found.operand, *found.tensor, found.tensor->offset.value);
}

TensorView Operands::only_tensor(const BoundAccess& operand) const {
  if (operand.layout == nullptr) fail("an operand has no layout");
  const auto& tensors = operand.layout->tensors;
  if (operand.part.kind == Part::Kind::Tensor && operand.part.a < tensors.size()) return bind(operand, tensors[operand.part.a], 0);
  if (operand.part.kind != Part::Kind::Whole || operand.shard || tensors.size() != 1)
    fail(fmt::format("an operand with layout {} must be one tensor", operand.layout->name));
  return bind(operand, tensors.front(), tensors.front().offset.value);
}

std::span<const std::int64_t> Operands::ids(const BoundAccess& operand) const {
  constexpr std::int64_t kIdBytes = size_of(DType::Int64);
  if (operand.bytes % kIdBytes != 0) fail(fmt::format("{} bytes are not whole int64 ids", operand.bytes));
  return {reinterpret_cast<const std::int64_t*>(operand.data), static_cast<std::size_t>(operand.bytes / kIdBytes)};
}

TensorView Operands::bind(const BoundAccess& operand, const TensorSpec& tensor, std::int64_t offset) const {
  if (offset < 0 || offset + tensor.bytes().value > operand.bytes)
    fail(fmt::format("tensor {} does not fit into its operand of {} bytes", tensor.name, operand.bytes));
  return {operand.data + offset, tensor.dtype, tensor.shape};
}

}  // namespace steptwin
