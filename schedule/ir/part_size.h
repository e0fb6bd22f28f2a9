// Sizes of parts and what the accesses of a communication or copy op say about its payload.
#pragma once

#include <optional>
#include <span>

#include "schedule/ir/schedule.h"

namespace steptwin {

// Bytes of a tensor; none when a shape is negative or the product passes kMaxBytes.
std::optional<std::int64_t> checked_bytes(const TensorSpec& tensor);

// Members of an instance of the communicator; none when its groups differ in size or an axis is out of range.
std::optional<std::uint32_t> common_size(const Schedule& schedule, CommId comm);

// Bytes of a part, where it is the same on every rank: a piece or shard only when it divides evenly. None otherwise, or when
// an id is out of range.
std::optional<std::int64_t> part_size(const Schedule& schedule, const Program& program, const Access& access);

// Payload that the accesses imply, what the text form leaves out. inputs = read and update, outputs = write and update:
//   gather, recv: the outputs, else the inputs; every other kind: the inputs, else the outputs.
//   bytes: the sum of their sizes, 0 when there are none or a size differs by rank.
//   dtype: of the first such access, when it is a tensor or all tensors of its layout agree; else bf16.
//   to (copy only): the same for the first output; none when no layout says it, and then a copy keeps the type it reads.
struct Payload {
  Bytes bytes;
  DType dtype = DType::Bf16;
  std::optional<DType> to;
};
Payload implied_payload(const Schedule& schedule, const Program& program, const OpBody& body, std::span<const Access> accesses);

}  // namespace steptwin
