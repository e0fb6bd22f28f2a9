#include "schedule/ir/builder.h"

#include <algorithm>
#include <utility>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

template <class T>
void append(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string key_of(const Layout& layout) {
  std::string key = layout.name + '\0';
  for (const TensorSpec& t : layout.tensors) {
    key += t.name + '\0';
    append(key, t.dtype);
    append(key, t.offset.value);
    for (std::int64_t extent : t.shape) append(key, extent);
    key += '\1';
  }
  return key;
}

std::string key_of(const Work& work) {
  std::string key;
  for (const Kernel& k : work.kernels) {
    append(key, k.kind);
    append(key, k.dtype);
    for (std::int64_t v : {k.batch, k.m, k.n, k.k, k.flops.value, k.bytes.value}) append(key, v);
  }
  return key;
}

}  // namespace

ScheduleBuilder::ScheduleBuilder(Mesh mesh) {
  schedule_.mesh = std::move(mesh);
  schedule_.access_offsets.push_back(0);
  schedule_.dep_offsets.push_back(0);
}

CommId ScheduleBuilder::communicator(std::string name, const std::vector<std::string>& axes, std::vector<std::vector<std::uint32_t>> groups) {
  Communicator comm{std::move(name), {}, std::move(groups)};
  for (const std::string& axis : axes) {
    const auto index = schedule_.mesh.axis(axis);
    invariant(index.has_value(), "communicator axis exists in the mesh");
    comm.axes.push_back(*index);
  }
  std::sort(comm.axes.begin(), comm.axes.end());
  schedule_.communicators.push_back(std::move(comm));
  return CommId(static_cast<std::uint32_t>(schedule_.communicators.size() - 1));
}

void ScheduleBuilder::constant(std::string name, double value) {
  invariant(!schedule_.constant(name), "a constant is stated once");
  schedule_.constants.push_back({std::move(name), value});
}

NameId ScheduleBuilder::name(std::string_view text) {
  if (text.empty()) return NameId();
  const auto [it, fresh] = names_.try_emplace(std::string(text), static_cast<std::uint32_t>(schedule_.names.size()));
  if (fresh) schedule_.names.emplace_back(text);
  return NameId(it->second);
}

LayoutId ScheduleBuilder::layout(Layout layout) {
  const auto [it, fresh] = layouts_.try_emplace(key_of(layout), static_cast<std::uint32_t>(schedule_.layouts.size()));
  if (fresh) schedule_.layouts.push_back(std::move(layout));
  return LayoutId(it->second);
}

WorkId ScheduleBuilder::work(Work work) {
  const auto [it, fresh] = works_.try_emplace(key_of(work), static_cast<std::uint32_t>(schedule_.works.size()));
  if (fresh) schedule_.works.push_back(std::move(work));
  return WorkId(it->second);
}

void ScheduleBuilder::begin_program(std::string name, std::vector<RankId> ranks, std::vector<std::int32_t> stages) {
  std::sort(ranks.begin(), ranks.end());
  Program program;
  program.name = std::move(name);
  program.ranks = std::move(ranks);
  program.stages = std::move(stages);
  program.first_op = OpId(next_op());
  schedule_.programs.push_back(std::move(program));
  groups_ = 0;
}

LaneId ScheduleBuilder::lane(std::string name, Engine engine, Priority priority) {
  auto& lanes = schedule_.programs.back().lanes;
  lanes.push_back({std::move(name), engine, priority});
  return LaneId(static_cast<std::uint32_t>(lanes.size() - 1));
}

BufferId ScheduleBuilder::buffer(std::string_view buffer_name, Space space, Category category, Bytes bytes, LayoutId layout, bool resident) {
  const NameId id = name(buffer_name);
  auto& buffers = schedule_.programs.back().buffers;
  buffers.push_back({id, space, category, resident, false, layout, bytes, {}});
  return BufferId(static_cast<std::uint32_t>(buffers.size() - 1));
}

void ScheduleBuilder::shard_buffer(BufferId buffer, CommId comm) { schedule_.programs.back().buffers[buffer.value].shard = comm; }

void ScheduleBuilder::make_lazy(BufferId buffer) { schedule_.programs.back().buffers[buffer.value].lazy = true; }

void ScheduleBuilder::grow_buffer(BufferId buffer, Bytes bytes) { schedule_.programs.back().buffers[buffer.value].bytes = bytes; }

GroupId ScheduleBuilder::new_group() { return GroupId(groups_++); }

OpId ScheduleBuilder::op(Op op, const std::vector<Access>& accesses, std::vector<OpId> deps) {
  const OpId id(next_op());
  std::sort(deps.begin(), deps.end());
  deps.erase(std::unique(deps.begin(), deps.end()), deps.end());
  schedule_.ops.push_back(std::move(op));
  schedule_.accesses.insert(schedule_.accesses.end(), accesses.begin(), accesses.end());
  schedule_.access_offsets.push_back(static_cast<std::uint32_t>(schedule_.accesses.size()));
  schedule_.deps.insert(schedule_.deps.end(), deps.begin(), deps.end());
  schedule_.dep_offsets.push_back(static_cast<std::uint32_t>(schedule_.deps.size()));
  ++schedule_.programs.back().op_count;
  return id;
}

OpId ScheduleBuilder::compute(LaneId lane, Label label, WorkId work, const std::vector<Access>& accesses, std::vector<OpId> deps) {
  return compute_parts(lane, label, {{label.phase, label.segment, label.layer, label.micro_batch, work}}, accesses, std::move(deps));
}

OpId ScheduleBuilder::compute_parts(LaneId lane, Label label, const std::vector<ComputePart>& parts, const std::vector<Access>& accesses,
                                    std::vector<OpId> deps) {
  Op made;
  made.body = Compute{static_cast<std::uint32_t>(schedule_.parts.size()), static_cast<std::uint32_t>(parts.size())};
  made.lane = lane;
  made.label = label;
  schedule_.parts.insert(schedule_.parts.end(), parts.begin(), parts.end());
  return op(std::move(made), accesses, std::move(deps));
}

Schedule ScheduleBuilder::finish() { return std::move(schedule_); }

}  // namespace steptwin
