// Operations: what a rank issues. A kind is one struct here and one row in OpBody; code that treats kinds visits the
// variant without a default, so that a new kind is a compile error wherever it must be handled.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "schedule/base/dtype.h"
#include "schedule/base/ids.h"
#include "schedule/base/units.h"

namespace steptwin {

// F, B (= I then W in one op), I (input gradient only), W (weight gradient only), R (re-forward under recompute),
// U (everything around the optimizer step: gradient accumulation, clipping, Adam). None prints as nothing.
enum class Phase : std::uint8_t { None, Forward, Backward, InputGrad, WeightGrad, Recompute, Update };

// What an op belongs to; -1 = does not apply. Segment names are interned ("attn", "mlp", "embed", "head", "adam", ...).
struct Label {
  Phase phase = Phase::None;
  NameId segment;
  std::int32_t layer = -1;
  std::int32_t chunk = -1;
  std::int32_t micro_batch = -1;
  std::int32_t slice = -1;
  bool operator==(const Label&) const = default;
};

// One kernel of a compute op. flops and bytes are totals of the kernel; m, n, k, batch say the matmul shape (0 = none).
struct Kernel {
  enum class Kind : std::uint8_t { MatMul, Attention, Stream };  // Stream: bound by memory traffic
  Kind kind = Kind::Stream;
  DType dtype = DType::Bf16;
  std::int64_t batch = 1, m = 0, n = 0, k = 0;  // MatMul: [batch] m x k times k x n. Attention: batch*heads, m = queries, n = keys, k = head size
  Flops flops;
  Bytes bytes;  // read + written in device memory
  bool operator==(const Kernel&) const = default;
};

// The work of a compute op: its kernels in launch order. Shared by all ops with the same shapes.
struct Work {
  std::vector<Kernel> kernels;
  Flops flops() const;
  Bytes bytes() const;
  bool operator==(const Work&) const = default;
};

// One part of a compute op: usually the only one; two for an overlapped or fused pair.
struct ComputePart {
  Phase phase = Phase::None;
  NameId segment;
  std::int32_t layer = -1;
  std::int32_t micro_batch = -1;
  WorkId work;  // none: no kernels (duration given, or 0)
  bool operator==(const ComputePart&) const = default;
};

// Which member of the communicator a message goes to or comes from, or which is the root.
// relative: member + value (mod size), +1 = the next on the ring. absolute: that member number.
struct Peer {
  std::int32_t value = 0;
  bool relative = false;
  bool operator==(const Peer&) const = default;
  std::uint32_t resolve(std::uint32_t member, std::uint32_t size) const {
    if (!relative) return static_cast<std::uint32_t>(value);
    const std::int64_t n = size;
    return static_cast<std::uint32_t>(((static_cast<std::int64_t>(member) + value) % n + n) % n);
  }
};

// Sizes in `bytes` follow nccl-tests: all-gather = gathered output, reduce-scatter = whole input, all-reduce and
// broadcast = the buffer, all-to-all = all bytes a rank sends, send/recv = the message.
struct Compute {
  std::uint32_t first_part = 0;  // into Schedule::parts
  std::uint32_t part_count = 0;
  bool operator==(const Compute&) const = default;
};
struct AllGather { CommId comm; DType dtype = DType::Bf16; Bytes bytes; bool operator==(const AllGather&) const = default; };
struct ReduceScatter { CommId comm; DType dtype = DType::Bf16; Bytes bytes; bool operator==(const ReduceScatter&) const = default; };
struct AllReduce {
  enum class Reduction : std::uint8_t { Sum, Max };
  CommId comm; DType dtype = DType::Bf16; Bytes bytes; Reduction reduction = Reduction::Sum;
  bool operator==(const AllReduce&) const = default;
};
struct Broadcast { CommId comm; DType dtype = DType::Bf16; Bytes bytes; Peer root; bool operator==(const Broadcast&) const = default; };
struct AllToAll { CommId comm; DType dtype = DType::Bf16; Bytes bytes; bool operator==(const AllToAll&) const = default; };
struct Send { CommId comm; DType dtype = DType::Bf16; Bytes bytes; Peer to; bool operator==(const Send&) const = default; };
struct Recv { CommId comm; DType dtype = DType::Bf16; Bytes bytes; Peer from; bool operator==(const Recv&) const = default; };
// Moves the read access into the written one, between any two spaces; dtypes differ = cast. bytes = bytes read.
struct Copy { DType from = DType::Bf16; DType to = DType::Bf16; Bytes bytes; bool operator==(const Copy&) const = default; };
// The issuing thread waits until `target`, an earlier op of the same program, has ended. Has no lane.
struct HostWait { OpId target; bool operator==(const HostWait&) const = default; };

using OpBody = std::variant<Compute, AllGather, ReduceScatter, AllReduce, Broadcast, AllToAll, Send, Recv, Copy, HostWait>;

// Part of a buffer that an access touches. Tensor: tensor a of the buffer's layout. Shard: own shard along the
// communicator a (bytes/size at member*bytes/size, rounded up per member, the last ones may be short). Piece: piece a of b equal ones.
struct Part {
  enum class Kind : std::uint8_t { Whole, Tensor, Shard, Piece };
  Kind kind = Kind::Whole;
  std::uint32_t a = 0, b = 0;
  bool operator==(const Part&) const = default;
};

// Read, write, update (in place), hold (keeps the buffer allocated, touches nothing).
enum class AccessMode : std::uint8_t { Read, Write, Update, Hold };

struct Access {
  BufferId buffer;
  AccessMode mode = AccessMode::Read;
  Part part;
  bool operator==(const Access&) const = default;
};

// The common part. Accesses and dependencies live in the schedule's CSR arrays.
struct Op {
  OpBody body;
  LaneId lane;        // none only for HostWait
  GroupId group;      // none = not grouped
  BufferId guard;     // none = always does its work
  Label label;
  Duration given{-1}; // >= 0: the op states its own duration and no cost model is asked
  bool operator==(const Op&) const = default;
};

template <class... Ts>
struct Overloaded : Ts... { using Ts::operator()...; };
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

const char* kind_name(const OpBody& body);  // "compute", "gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send", "recv", "copy", "host_wait"
const char* name_of(Phase phase);           // "", "F", "B", "I", "W", "R", "U"

// The communicator of a communication op; none for Compute, Copy and HostWait.
CommId comm_of(const OpBody& body);
// Payload bytes as defined above; Compute and HostWait have none (0).
Bytes bytes_of(const OpBody& body);
bool is_point_to_point(const OpBody& body);
bool is_collective(const OpBody& body);

}  // namespace steptwin
