// Schedule: the value in the middle of steptwin. It says exactly which operations every rank issues, in order, on which
// lane, over which buffers. It is simulated and executed as it stands; neither side asks the scenario for anything.
//
// Semantics, per rank (all times on one run clock; the issuing thread of a rank visits its ops in id order):
//   issued(k) = issued(k-1) + launch cost(k)                      issued(-1) = 0
//               HostWait: issued(k) = max(issued(k-1), end(target)); it has no lane, start = issued(k-1), end = issued(k).
//   ready(k)  = max( issued after the first launch of k,          (an op of n kernels may start after its first launch)
//                    end of the op before it on its lane,
//                    end of the op before it in its communicator's FIFO, outside its own group,
//                    ends of its dependencies )
//     FIFO of a communicator: collectives of one communicator on one rank, whatever their lanes; messages per ordered pair of members.
//   A ready op holds its lane until its end.
//   start(k)  = max of ready over its counterparts (all members of the collective; both ends of the message; else itself),
//               later only when a shared resource is full.
//   end(k)    = max(start(k) + duration(k), issued(k)), equal for all counterparts of a communication op.
//   Group: consecutive communication ops of one lane. One launch cost (charged at its first op), one ready = max of its
//     members' ready; each member starts when its counterparts are ready; all members end, for lane and dependents, when
//     the last one ends.
//   Counterparts: the k-th collective issued on a communicator instance by one member meets the k-th of every other
//     member; the k-th Send a->b meets the k-th Recv b<-a.
// Buffers: lifetime is derived (liveness.h), never stored.
// Steps: a run is a list of (schedule, repetitions). At a repetition every op of a rank waits for all earlier ops of that
// rank. Resident buffers carry over by name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "schedule/base/ids.h"
#include "schedule/base/units.h"
#include "schedule/ir/mesh.h"
#include "schedule/ir/op.h"

namespace steptwin {

// Where the engine of a lane sits. Storage = disk and NVMe; Host = a worker thread of the CPU.
enum class Engine : std::uint8_t { Compute, CopyUp, CopyDown, Network, Storage, Host };
inline constexpr std::size_t kEngineCount = 6;
enum class Priority : std::uint8_t { Normal, High };

// A FIFO in both worlds: a queue in the simulator, a CUDA stream or a worker in the executor.
struct Lane {
  std::string name;
  Engine engine = Engine::Compute;
  Priority priority = Priority::Normal;
  bool operator==(const Lane&) const = default;
};

enum class Space : std::uint8_t { Device, Pinned, Pageable, Storage };
inline constexpr std::size_t kSpaces = 4;

enum class Category : std::uint8_t {
  Param, GatheredParam, Gradient, GradientShard, Optimizer, Activation, Recompute, Workspace, SendBuffer, RecvBuffer,
  Logits, Input, Other
};
inline constexpr std::size_t kCategories = 13;

struct TensorSpec {
  std::string name;
  DType dtype = DType::Bf16;
  std::vector<std::int64_t> shape;
  Bytes offset;  // from the start of the buffer
  Bytes bytes() const;
  bool operator==(const TensorSpec&) const = default;
};

// Named tensors inside a buffer; shared by the buffers that look alike.
struct Layout {
  std::string name;
  std::vector<TensorSpec> tensors;
  bool operator==(const Layout&) const = default;
};

struct Buffer {
  NameId name;  // none prints as b<index>
  Space space = Space::Device;
  Category category = Category::Other;
  bool resident = false;  // lives for the whole run; carried over steps by name
  bool lazy = false;      // resident, but allocated at its first access in the run's first repetition, as what it starts with (zeros)
  LayoutId layout;        // none = opaque bytes
  Bytes bytes;
  CommId shard;           // valid: member i of this communicator holds bytes [i * bytes, (i + 1) * bytes) of what the layout describes; the
                          // tensors end before members * bytes, and the buffer has no tensor parts
  bool operator==(const Buffer&) const = default;
};

// What a role (a set of ranks that issue the same ops with the same sizes) issues.
struct Program {
  std::string name;                 // by coordinates: "pp1"
  std::vector<RankId> ranks;        // ascending; every rank of the mesh belongs to at most one program
  std::vector<std::int32_t> stages; // stage of chunk c; empty = not a pipeline
  std::vector<Lane> lanes;
  std::vector<Buffer> buffers;
  OpId first_op;
  std::uint32_t op_count = 0;
  bool operator==(const Program&) const = default;
};

// A figure that ops are executed with and that no shape says: "dropout", "clip", "loss_scale". Finite; cost models do not ask.
struct Constant {
  std::string name;
  double value = 0;
  bool operator==(const Constant&) const = default;
};

struct Schedule {
  Mesh mesh;
  std::vector<Communicator> communicators;
  std::vector<Constant> constants;
  std::vector<std::string> names;
  std::vector<Layout> layouts;
  std::vector<Work> works;
  std::vector<ComputePart> parts;
  std::vector<Program> programs;

  std::vector<Op> ops;                        // program after program, in issue order
  std::vector<std::uint32_t> access_offsets;  // ops.size() + 1
  std::vector<Access> accesses;               // in the order of the op's signature: its operands
  std::vector<std::uint32_t> dep_offsets;     // ops.size() + 1
  std::vector<OpId> deps;                     // earlier ops of the same program

  std::span<const Access> accesses_of(OpId op) const {
    return {accesses.data() + access_offsets[op.value], access_offsets[op.value + 1] - access_offsets[op.value]};
  }
  std::span<const OpId> deps_of(OpId op) const {
    return {deps.data() + dep_offsets[op.value], dep_offsets[op.value + 1] - dep_offsets[op.value]};
  }
  std::span<const Op> ops_of(const Program& program) const { return {ops.data() + program.first_op.value, program.op_count}; }
  std::span<const ComputePart> parts_of(const Compute& compute) const {
    return {parts.data() + compute.first_part, compute.part_count};
  }
  const Program& program_of(OpId op) const;         // op must be in range
  std::vector<ProgramId> program_of_rank() const;   // [rank]; none = the rank issues nothing
  std::optional<double> constant(std::string_view name) const;
  std::string_view name(NameId id) const { return id.valid() ? std::string_view(names[id.value]) : std::string_view(); }
  std::string buffer_name(const Program& program, BufferId buffer) const;
  // Stage of an op: stages[label.chunk] of its program, stages[0] when the label has no chunk and there is one stage; else -1.
  std::int32_t stage_of(const Program& program, const Op& op) const;
  bool operator==(const Schedule&) const = default;
};

// First byte and size of the part of a buffer that an access of `rank` touches. Shards need the communicator instances.
struct ByteRange {
  std::int64_t first = 0;
  std::int64_t size = 0;
};
ByteRange byte_range(const Buffer& buffer, const Schedule& schedule, const Part& part, std::uint32_t member, std::uint32_t members);

// The bytes of its layout that a buffer holds on member `member` of its `shard` communicator: all of it when it is no shard.
inline ByteRange held_range(const Buffer& buffer, std::uint32_t member) {
  return {buffer.shard.valid() ? member * buffer.bytes.value : 0, buffer.bytes.value};
}

// The part of one tensor that lies inside a range of its layout's bytes.
struct TensorPiece {
  std::uint32_t tensor = 0;        // of the layout
  std::int64_t first_element = 0;  // of the tensor
  std::int64_t elements = 0;       // > 0
  std::int64_t at = 0;             // bytes from the start of the range
};
// In layout order. Ranges that cut no element tile every tensor exactly once if they tile the layout.
std::vector<TensorPiece> tensor_pieces(const Layout& layout, ByteRange range);

// SHA-256 over the meaning of the schedule (its canonical text form), hex.
std::string schedule_digest(const Schedule& schedule);

const char* name_of(Engine engine);      // "compute", "copy_up", "copy_down", "network", "storage", "host"
const char* name_of(Space space);        // "device", "pinned", "pageable", "storage"
const char* name_of(Category category);  // "param", "gathered_param", "gradient", "gradient_shard", "optimizer", ...

}  // namespace steptwin
