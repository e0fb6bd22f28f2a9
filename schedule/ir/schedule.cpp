#include "schedule/ir/schedule.h"

#include <algorithm>

#include "schedule/base/digest.h"
#include "schedule/base/error.h"
#include "schedule/ir/text.h"

namespace steptwin {

Bytes TensorSpec::bytes() const {
  std::int64_t elements = 1;
  for (std::int64_t extent : shape) elements *= extent;
  return Bytes(elements * size_of(dtype));
}

const Program& Schedule::program_of(OpId op) const {
  const auto after = std::upper_bound(programs.begin(), programs.end(), op.value,
                                      [](std::uint32_t value, const Program& p) { return value < p.first_op.value; });
  invariant(after != programs.begin(), "op belongs to a program");
  return *std::prev(after);
}

std::optional<double> Schedule::constant(std::string_view wanted) const {
  const auto it = std::find_if(constants.begin(), constants.end(), [&](const Constant& c) { return c.name == wanted; });
  return it == constants.end() ? std::nullopt : std::optional(it->value);
}

std::vector<ProgramId> Schedule::program_of_rank() const {
  std::vector<ProgramId> out(mesh.size());
  for (std::size_t p = 0; p < programs.size(); ++p)
    for (RankId rank : programs[p].ranks)
      if (rank.value < out.size()) out[rank.value] = ProgramId(static_cast<std::uint32_t>(p));
  return out;
}

std::string Schedule::buffer_name(const Program& program, BufferId buffer) const {
  const NameId id = program.buffers[buffer.value].name;
  return id.valid() ? names[id.value] : "b" + std::to_string(buffer.value);
}

std::int32_t Schedule::stage_of(const Program& program, const Op& op) const {
  if (op.label.chunk < 0) return program.stages.size() == 1 ? program.stages[0] : -1;
  const auto chunk = static_cast<std::size_t>(op.label.chunk);
  return chunk < program.stages.size() ? program.stages[chunk] : -1;
}

ByteRange byte_range(const Buffer& buffer, const Schedule& schedule, const Part& part, std::uint32_t member, std::uint32_t members) {
  const std::int64_t size = buffer.bytes.value;
  const auto slice = [size](std::int64_t index, std::int64_t count) {
    const std::int64_t each = count > 0 ? (size + count - 1) / count : size;
    const std::int64_t first = std::min(size, index * each);
    return ByteRange{first, std::min(size, first + each) - first};
  };
  switch (part.kind) {
    case Part::Kind::Whole: return {0, size};
    case Part::Kind::Shard: return slice(member, members);
    case Part::Kind::Piece: return slice(part.a, part.b);
    case Part::Kind::Tensor: {
      const TensorSpec& tensor = schedule.layouts[buffer.layout.value].tensors[part.a];
      return {tensor.offset.value, tensor.bytes().value};
    }
  }
  return {0, size};
}

std::vector<TensorPiece> tensor_pieces(const Layout& layout, ByteRange range) {
  std::vector<TensorPiece> pieces;
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    const TensorSpec& tensor = layout.tensors[t];
    const std::int64_t begin = tensor.offset.value, size = size_of(tensor.dtype);
    const std::int64_t first = std::max(begin, range.first), end = std::min(begin + tensor.bytes().value, range.first + range.size);
    if (first < end) pieces.push_back({t, (first - begin) / size, (end - first) / size, first - range.first});
  }
  return pieces;
}

std::string schedule_digest(const Schedule& schedule) { return sha256_hex(print_schedule(schedule)); }

const char* name_of(Engine engine) {
  switch (engine) {
    case Engine::Compute: return "compute";
    case Engine::CopyUp: return "copy_up";
    case Engine::CopyDown: return "copy_down";
    case Engine::Network: return "network";
    case Engine::Storage: return "storage";
    case Engine::Host: return "host";
  }
  return "?";
}

const char* name_of(Space space) {
  switch (space) {
    case Space::Device: return "device";
    case Space::Pinned: return "pinned";
    case Space::Pageable: return "pageable";
    case Space::Storage: return "storage";
  }
  return "?";
}

const char* name_of(Category category) {
  switch (category) {
    case Category::Param: return "param";
    case Category::GatheredParam: return "gathered_param";
    case Category::Gradient: return "gradient";
    case Category::GradientShard: return "gradient_shard";
    case Category::Optimizer: return "optimizer";
    case Category::Activation: return "activation";
    case Category::Recompute: return "recompute";
    case Category::Workspace: return "workspace";
    case Category::SendBuffer: return "send";
    case Category::RecvBuffer: return "recv";
    case Category::Logits: return "logits";
    case Category::Input: return "input";
    case Category::Other: return "other";
  }
  return "?";
}

}  // namespace steptwin
