// RANGE: do the vectors of a schedule fit together, and are all declared values inside their bounds?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "schedule/ir/limits.h"
#include "schedule/ir/part_size.h"
#include "schedule/ir/verify_checks.h"

namespace steptwin {
namespace {

constexpr const char* kRange = "RANGE";

bool offsets_fit(const std::vector<std::uint32_t>& offsets, std::size_t rows, std::size_t values) {
  return offsets.size() == rows + 1 && offsets.front() == 0 && offsets.back() == values && std::is_sorted(offsets.begin(), offsets.end());
}

template <class E>
bool known(E value, std::size_t count) {
  return static_cast<std::size_t>(value) < count;
}

bool within(std::int64_t value, std::int64_t most) { return value >= 0 && value <= most; }

// The values of one kind of declaration that must have distinct names.
class DistinctNames {
 public:
  DistinctNames(Findings& findings, std::string plural) : findings_(findings), plural_(std::move(plural)) {}
  void add(const std::string& name) {
    if (name.empty())
      findings_.error(kRange, fmt::format("one of the {} has no name", plural_));
    else if (!seen_.insert(name).second)
      findings_.error(kRange, fmt::format("two {} are called '{}'", plural_, name), "give one of them another name");
  }

 private:
  Findings& findings_;
  std::string plural_;
  std::unordered_set<std::string> seen_;
};

void check_mesh(const Mesh& mesh, Findings& findings) {
  DistinctNames names(findings, "mesh axes");
  std::uint64_t ranks = 1;
  for (const Axis& axis : mesh.axes) {
    names.add(axis.name);
    ranks = ranks > kMaxRanks ? ranks : ranks * axis.size;
  }
  if (ranks == 0 || ranks > kMaxRanks)
    findings.error(kRange, "the mesh must have between 1 and 1048576 ranks", "check the sizes of its axes");
}

void check_groups(const Communicator& comm, std::uint64_t positions, Findings& findings) {
  std::unordered_set<std::uint32_t> seen;
  for (const auto& group : comm.groups) {
    if (group.empty()) findings.error(kRange, fmt::format("communicator {} has an empty group", comm.name));
    for (std::uint32_t position : group) {
      if (position >= positions)
        findings.error(kRange, fmt::format("communicator {}: group position {} is not below {}", comm.name, position, positions));
      else if (!seen.insert(position).second)
        findings.error(kRange, fmt::format("communicator {}: position {} is in two groups", comm.name, position), "groups are disjoint");
    }
  }
}

void check_communicators(const Schedule& s, Findings& findings) {
  DistinctNames names(findings, "communicators");
  for (const Communicator& comm : s.communicators) {
    names.add(comm.name);
    std::uint64_t positions = 1;
    bool sound = true;
    for (std::size_t i = 0; i < comm.axes.size(); ++i) {
      sound = sound && comm.axes[i] < s.mesh.axes.size() && (i == 0 || comm.axes[i] > comm.axes[i - 1]);
      if (sound) positions *= s.mesh.axes[comm.axes[i]].size;
    }
    if (!sound) findings.error(kRange, fmt::format("communicator {}: its axes are not ascending axes of the mesh", comm.name));
    if (sound) check_groups(comm, positions, findings);
  }
}

void check_layouts(const Schedule& s, Findings& findings) {
  for (std::size_t l = 0; l < s.layouts.size() && !findings.full(); ++l) {
    for (const TensorSpec& tensor : s.layouts[l].tensors) {
      const auto bytes = known(tensor.dtype, kDTypes) ? checked_bytes(tensor) : std::nullopt;
      if (!bytes || !within(tensor.offset.value, kMaxBytes) || *bytes > kMaxBytes - tensor.offset.value)
        findings.error(kRange,
                       fmt::format("tensor {} of layout {} '{}' has no valid type, shape or offset", tensor.name, l, s.layouts[l].name));
    }
  }
}

void check_constants(const Schedule& s, Findings& findings) {
  DistinctNames names(findings, "constants");
  for (const Constant& constant : s.constants) {
    names.add(constant.name);
    if (!std::isfinite(constant.value)) findings.error(kRange, fmt::format("constant {} is not a finite number", constant.name));
  }
}

void check_works(const Schedule& s, Findings& findings) {
  for (std::size_t w = 0; w < s.works.size() && !findings.full(); ++w) {
    double flops = 0, bytes = 0;
    for (const Kernel& k : s.works[w].kernels) {
      const std::int64_t least = std::min({k.batch, k.m, k.n, k.k, k.flops.value, k.bytes.value});
      const std::int64_t most = std::max({k.batch, k.m, k.n, k.k, k.flops.value});
      if (least < 0 || most > kMaxCount || k.bytes.value > kMaxBytes || !known(k.kind, 3) || !known(k.dtype, kDTypes))
        findings.error(kRange, fmt::format("work w{} has a kernel with a number out of bounds", w));
      flops += static_cast<double>(k.flops.value), bytes += static_cast<double>(k.bytes.value);
    }
    if (flops > 9e18 || bytes > 9e18) findings.error(kRange, fmt::format("the kernels of work w{} add up to more than an int64", w));
  }
}

void check_lanes(const Program& program, Findings& findings) {
  if (program.lanes.size() > kMaxLanes)
    findings.error(kRange, fmt::format("program {} has {} lanes, more than {}", program.name, program.lanes.size(), kMaxLanes));
  DistinctNames names(findings, fmt::format("lanes of {}", program.name));
  for (const Lane& lane : program.lanes) {
    names.add(lane.name);
    if (!known(lane.engine, kEngineCount) || !known(lane.priority, 2))
      findings.error(kRange, fmt::format("lane {} of {} has no valid engine", lane.name, program.name));
  }
}

// Where the last tensor of every layout ends; 0 where check_layouts has found it unsound.
std::vector<std::int64_t> layout_ends(const Schedule& s) {
  std::vector<std::int64_t> ends;
  for (const Layout& layout : s.layouts) {
    std::int64_t end = 0;
    for (const TensorSpec& tensor : layout.tensors) {
      const std::int64_t bytes = known(tensor.dtype, kDTypes) ? checked_bytes(tensor).value_or(0) : 0;
      if (within(tensor.offset.value, kMaxBytes) && bytes <= kMaxBytes) end = std::max(end, tensor.offset.value + bytes);
    }
    ends.push_back(end);
  }
  return ends;
}

// Bytes of the buffer, or of all shards together. Shards of a communicator whose size is unknown or that cannot be counted hold nothing.
std::int64_t all_shards(const Schedule& s, const Buffer& buffer) {
  if (!buffer.shard.valid()) return buffer.bytes.value;
  const std::int64_t members = common_size(s, buffer.shard).value_or(0);
  return buffer.bytes.value > kMaxBytes / std::max<std::int64_t>(1, members) ? 0 : members * buffer.bytes.value;
}

void check_buffers(const Schedule& s, const Program& program, const std::vector<std::int64_t>& ends, Findings& findings) {
  std::unordered_set<std::uint32_t> resident;
  double total = 0;
  for (const Buffer& buffer : program.buffers) total += static_cast<double>(buffer.bytes.value);
  if (total > static_cast<double>(kMaxProgramBytes))
    findings.error(kRange, fmt::format("the buffers of {} take {:.1e} bytes, more than can be counted", program.name, total));
  for (std::size_t b = 0; b < program.buffers.size() && !findings.full(); ++b) {
    const Buffer& buffer = program.buffers[b];
    const bool name_ok = !buffer.name.valid() || buffer.name.value < s.names.size();
    const bool layout_ok = !buffer.layout.valid() || buffer.layout.value < s.layouts.size();
    if (!name_ok || !layout_ok || !known(buffer.space, kSpaces) || !known(buffer.category, kCategories) ||
        !within(buffer.bytes.value, kMaxBytes) || (buffer.shard.valid() && buffer.shard.value >= s.communicators.size())) {
      findings.error(kRange, fmt::format("buffer {} of {} has a name, layout, space, category or size out of bounds", b, program.name));
    } else if (buffer.lazy && !buffer.resident) {
      findings.error(kRange, fmt::format("buffer {} of {} is lazy, but not resident", b, program.name));
    } else if (buffer.resident && buffer.name.valid() && !resident.insert(buffer.name.value).second) {
      findings.error(kRange, fmt::format("two resident buffers of {} are called '{}'", program.name, s.name(buffer.name)),
                     "resident buffers carry over steps by name: give one of them another");
    } else if (buffer.layout.valid() && ends[buffer.layout.value] > all_shards(s, buffer)) {
      const std::string name = s.buffer_name(program, BufferId(static_cast<std::uint32_t>(b)));
      findings.error("ACCESS",
                     fmt::format("buffer {} of {} has {} bytes{}, but its layout {} ends at byte {}", name, program.name, all_shards(s, buffer),
                                 buffer.shard.valid() ? " in all its shards" : "", s.layouts[buffer.layout.value].name, ends[buffer.layout.value]),
                     "make it larger, leave its size out, or give it another layout");
    }
  }
}

void check_ranks(const Schedule& s, Findings& findings) {
  std::vector<const Program*> owner(s.mesh.size(), nullptr);
  for (const Program& program : s.programs) {
    for (std::size_t i = 0; i < program.ranks.size() && !findings.full(); ++i) {
      const std::uint32_t rank = program.ranks[i].value;
      if (rank >= owner.size() || (i > 0 && program.ranks[i] <= program.ranks[i - 1])) {
        findings.error(kRange, fmt::format("the ranks of {} are not ascending ranks of the mesh", program.name));
        break;
      }
      if (owner[rank])
        findings.error(kRange, fmt::format("rank {} is in programs {} and {}", rank, owner[rank]->name, program.name),
                       "a rank issues one program");
      owner[rank] = &program;
    }
  }
}

void check_programs(const Schedule& s, Findings& findings) {
  DistinctNames names(findings, "programs");
  const std::vector<std::int64_t> ends = layout_ends(s);
  for (const Program& program : s.programs) {
    names.add(program.name);
    for (std::int32_t stage : program.stages)
      if (!within(stage, kMaxLabel))
        findings.error(kRange, fmt::format("program {} has a stage number {} out of bounds", program.name, stage));
    check_lanes(program, findings);
    check_buffers(s, program, ends, findings);
    if (findings.full()) return;
  }
  check_ranks(s, findings);
}

// Parts of compute ops stand in op order without gaps: one way to write a schedule, so that equal ones compare equal.
bool parts_in_order(const Schedule& s) {
  std::uint64_t next = 0;
  for (const Op& op : s.ops) {
    const auto* compute = std::get_if<Compute>(&op.body);
    if (!compute) continue;
    if (compute->first_part != next || compute->part_count == 0) return false;
    next += compute->part_count;
  }
  return next == s.parts.size();
}

}  // namespace

bool check_tables(const Schedule& s, Findings& findings) {
  std::uint64_t next = 0;
  bool tiled = true;
  for (const Program& program : s.programs) {
    tiled = tiled && program.first_op.value == next;
    next += program.op_count;
  }
  if (!tiled || next != s.ops.size()) {
    findings.error(kRange, "the programs do not cover the ops one after the other",
                   "first_op and op_count of every program must tile Schedule::ops");
  } else if (!offsets_fit(s.access_offsets, s.ops.size(), s.accesses.size())) {
    findings.error(kRange, "access_offsets do not fit the ops and accesses", "one offset per op and a last one, ascending");
  } else if (!offsets_fit(s.dep_offsets, s.ops.size(), s.deps.size())) {
    findings.error(kRange, "dep_offsets do not fit the ops and dependencies", "one offset per op and a last one, ascending");
  } else if (!parts_in_order(s)) {
    findings.error(kRange, "the parts of compute ops do not stand in op order without gaps",
                   "every compute op has at least one part, right after those of the op before it");
  }
  return !findings.any_error();
}

void check_declarations(const Schedule& s, Findings& findings) {
  check_mesh(s.mesh, findings);
  if (findings.any_error()) return;
  DistinctNames names(findings, "interned names");
  for (const std::string& name : s.names) names.add(name);
  check_constants(s, findings);
  check_communicators(s, findings);
  check_layouts(s, findings);
  check_works(s, findings);
  check_programs(s, findings);
}

}  // namespace steptwin
