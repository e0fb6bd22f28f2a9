#include "schedule/ir/part_size.h"

#include <algorithm>

#include "schedule/ir/limits.h"

namespace steptwin {
namespace {

bool is_input(AccessMode mode) { return mode == AccessMode::Read || mode == AccessMode::Update; }
bool is_output(AccessMode mode) { return mode == AccessMode::Write || mode == AccessMode::Update; }

const Buffer* buffer_of(const Program& program, BufferId id) {
  return id.value < program.buffers.size() ? &program.buffers[id.value] : nullptr;
}

std::optional<std::int64_t> even_share(std::int64_t bytes, std::uint32_t count) {
  if (count == 0 || bytes % count != 0) return std::nullopt;
  return bytes / count;
}

std::optional<DType> element_type(const Schedule& schedule, const Program& program, const Access& access) {
  const Buffer* buffer = buffer_of(program, access.buffer);
  if (!buffer || buffer->layout.value >= schedule.layouts.size()) return std::nullopt;
  const auto& tensors = schedule.layouts[buffer->layout.value].tensors;
  if (access.part.kind == Part::Kind::Tensor)
    return access.part.a < tensors.size() ? std::optional(tensors[access.part.a].dtype) : std::nullopt;
  if (tensors.empty()) return std::nullopt;
  const DType first = tensors.front().dtype;
  const bool agree = std::all_of(tensors.begin(), tensors.end(), [first](const TensorSpec& t) { return t.dtype == first; });
  return agree ? std::optional(first) : std::nullopt;
}

struct Side {
  std::int64_t bytes = 0;
  bool known = true;
  const Access* first = nullptr;
};

template <class Chosen>
Side side_of(const Schedule& schedule, const Program& program, std::span<const Access> accesses, Chosen chosen) {
  Side side;
  for (const Access& access : accesses) {
    if (!chosen(access.mode)) continue;
    if (!side.first) side.first = &access;
    const auto size = part_size(schedule, program, access);
    side.known = side.known && size && *size >= 0 && *size <= kMaxBytes && side.bytes <= kMaxBytes;
    if (side.known) side.bytes += *size;
  }
  return side;
}

}  // namespace

std::optional<std::int64_t> checked_bytes(const TensorSpec& tensor) {
  std::int64_t bytes = size_of(tensor.dtype);
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) bytes = 0;
  for (std::int64_t extent : tensor.shape) {
    if (extent < 0) return std::nullopt;
    if (bytes == 0) continue;
    if (extent > kMaxBytes / bytes) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

std::optional<std::uint32_t> common_size(const Schedule& schedule, CommId comm) {
  if (comm.value >= schedule.communicators.size()) return std::nullopt;
  const Communicator& c = schedule.communicators[comm.value];
  if (!c.groups.empty()) {
    const std::size_t size = c.groups.front().size();
    for (const auto& group : c.groups)
      if (group.size() != size) return std::nullopt;
    return static_cast<std::uint32_t>(size);
  }
  std::uint64_t size = 1;
  for (std::size_t axis : c.axes) {
    if (axis >= schedule.mesh.axes.size()) return std::nullopt;
    size *= schedule.mesh.axes[axis].size;
    if (size > kMaxRanks) return std::nullopt;
  }
  return static_cast<std::uint32_t>(size);
}

std::optional<std::int64_t> part_size(const Schedule& schedule, const Program& program, const Access& access) {
  const Buffer* buffer = buffer_of(program, access.buffer);
  if (!buffer) return std::nullopt;
  switch (access.part.kind) {
    case Part::Kind::Whole:
      return buffer->bytes.value;
    case Part::Kind::Piece:
      return even_share(buffer->bytes.value, access.part.b);
    case Part::Kind::Shard:
      return even_share(buffer->bytes.value, common_size(schedule, CommId(access.part.a)).value_or(0));
    case Part::Kind::Tensor: {
      if (buffer->layout.value >= schedule.layouts.size()) return std::nullopt;
      const auto& tensors = schedule.layouts[buffer->layout.value].tensors;
      if (access.part.a >= tensors.size()) return std::nullopt;
      return checked_bytes(tensors[access.part.a]);
    }
  }
  return std::nullopt;
}

Payload implied_payload(const Schedule& schedule, const Program& program, const OpBody& body, std::span<const Access> accesses) {
  const Side inputs = side_of(schedule, program, accesses, is_input);
  const Side outputs = side_of(schedule, program, accesses, is_output);
  const bool fills = std::holds_alternative<AllGather>(body) || std::holds_alternative<Recv>(body);
  const Side& first_choice = fills ? outputs : inputs;
  const Side& side = first_choice.first ? first_choice : (fills ? inputs : outputs);
  Payload payload;
  if (side.first && side.known && side.bytes <= kMaxBytes) payload.bytes = Bytes(side.bytes);
  if (side.first) payload.dtype = element_type(schedule, program, *side.first).value_or(DType::Bf16);
  if (outputs.first) payload.to = element_type(schedule, program, *outputs.first);
  return payload;
}

}  // namespace steptwin
