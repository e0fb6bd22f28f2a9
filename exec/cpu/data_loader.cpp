#include "exec/cpu/data_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): one well-mixed word per (seed, n).
std::uint64_t mix(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed * 0xd1342543de82ef95ull + (n + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

bool is_ids(const Schedule& schedule, const Buffer& buffer) {
  return buffer.category == Category::Input && buffer.layout.valid() && schedule.layouts[buffer.layout.value].tensors.size() == 1 &&
         schedule.layouts[buffer.layout.value].tensors[0].shape.size() == 3;
}

// The pipeline coordinates whose ranks hold tokens.
std::set<std::uint32_t> stages_with_tokens(const Schedule& schedule) {
  std::set<std::uint32_t> stages;
  for (const Program& program : schedule.programs) {
    const bool holds = std::any_of(program.buffers.begin(), program.buffers.end(), [&](const Buffer& buffer) {
      return is_ids(schedule, buffer) && schedule.name(buffer.name) == name_of(Ids::Tokens);
    });
    for (const RankId rank : program.ranks)
      if (holds) stages.insert(schedule.mesh.coordinate(rank, "pp"));
  }
  return stages;
}

std::int64_t replicas_of(const Schedule& schedule) {
  const auto axis = schedule.mesh.axis("dp");
  return axis ? static_cast<std::int64_t>(schedule.mesh.axes[*axis].size) : 1;
}

std::int64_t vocabulary_of(const Schedule& schedule) {
  for (const Layout& layout : schedule.layouts)
    for (const TensorSpec& tensor : layout.tensors)
      if ((tensor.name == "embed.token.weight" || tensor.name == "head.weight") && tensor.shape.size() == 2) return tensor.shape[0];
  return 0;
}

}  // namespace

DataShape data_shape(const Schedule& schedule) {
  DataShape shape;
  const auto stages = static_cast<std::int64_t>(stages_with_tokens(schedule).size());
  shape.data_parallel = replicas_of(schedule) * std::max<std::int64_t>(stages, 1);
  shape.vocabulary = vocabulary_of(schedule);
  for (const Program& program : schedule.programs) {
    for (const Buffer& buffer : program.buffers) {
      if (!is_ids(schedule, buffer)) continue;
      const std::vector<std::int64_t>& sizes = schedule.layouts[buffer.layout.value].tensors[0].shape;
      shape.micro_batches = sizes[0], shape.micro_batch = sizes[1], shape.sequence = sizes[2];
      return shape;
    }
  }
  return shape;
}

const char* name_of(Ids which) { return which == Ids::Tokens ? "tokens" : "targets"; }

BatchRank batch_rank(const Schedule& schedule, RankId rank) {
  const std::set<std::uint32_t> stages = stages_with_tokens(schedule);
  BatchRank own;
  own.replicas = replicas_of(schedule);
  own.replica = schedule.mesh.coordinate(rank, "dp");
  if (stages.size() < 2) return own;
  own.stages = static_cast<std::int64_t>(stages.size());
  own.stage = std::distance(stages.begin(), stages.lower_bound(schedule.mesh.coordinate(rank, "pp")));
  return own;
}

std::int64_t sample_number(const DataShape& shape, std::int64_t step, std::int64_t micro_batch, std::int64_t data_parallel_rank,
                           std::int64_t row) {
  return ((step * shape.micro_batches + micro_batch) * shape.data_parallel + data_parallel_rank) * shape.micro_batch + row;
}

DataLoader::DataLoader(std::span<const std::uint8_t> text, const DataShape& shape, std::uint64_t seed, const std::string& name)
    : text_(text), shape_(shape), seed_(seed) {
  if (shape.micro_batches == 0) return;
  const auto needed = static_cast<std::size_t>(shape.sequence) + 1;
  if (text.size() < needed)
    throw EnvironmentError(
        EnvironmentError::Kind::File,
        fmt::format("{} has {} bytes; a sequence of {} tokens needs at least {}", name, text.size(), shape.sequence, needed),
        "give a longer file with --data FILE, or a shorter batch.sequence_length");
}

void DataLoader::fill_row(std::int64_t sample, Ids which, std::int64_t* to) const {
  const std::uint64_t places = text_.size() - static_cast<std::size_t>(shape_.sequence);
  const std::uint64_t at = mix(seed_, static_cast<std::uint64_t>(sample)) % places + (which == Ids::Targets ? 1 : 0);
  const std::int64_t vocabulary = shape_.vocabulary > 0 ? shape_.vocabulary : 256;
  for (std::int64_t i = 0; i < shape_.sequence; ++i) to[i] = text_[at + static_cast<std::uint64_t>(i)] % vocabulary;
}

void DataLoader::fill_step(std::int64_t step, std::int64_t data_parallel_rank, Ids which, std::int64_t* to) const {
  for (std::int64_t mb = 0; mb < shape_.micro_batches; ++mb) {
    for (std::int64_t row = 0; row < shape_.micro_batch; ++row) {
      fill_row(sample_number(shape_, step, mb, data_parallel_rank, row), which, to);
      to += shape_.sequence;
    }
  }
}

}  // namespace steptwin
