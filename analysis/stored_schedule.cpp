#include "analysis/stored_schedule.h"

#include <algorithm>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

std::int32_t or_minus_one(const Row& row, int column) {
  return row.type(column) == Table::Type::Null ? -1 : static_cast<std::int32_t>(row.integer(column));
}

std::uint32_t index_at(const Row& row, int column) { return static_cast<std::uint32_t>(row.integer(column)); }

constexpr const char* kOps =
    "SELECT o.program, o.lane, o.name, o.segment, o.stage, o.micro_batch, o.layer, o.bytes, o.group_no, o.comm, o.peer, o.peer_relative, "
    "k.value, o.op FROM op o JOIN string k ON k.id = o.kind WHERE o.schedule_id = ?1 AND o.op >= ?2 AND o.op < ?3 ORDER BY o.op";

StoredOp op_at(const Row& row) {
  StoredOp op;
  op.program = index_at(row, 0);
  op.lane = or_minus_one(row, 1);
  op.name = row.integer(2);
  op.segment = row.integer(3);
  op.stage = or_minus_one(row, 4);
  op.micro_batch = or_minus_one(row, 5);
  op.layer = or_minus_one(row, 6);
  op.bytes = row.integer(7);
  op.group = or_minus_one(row, 8);
  op.comm = index_at(row, 9);
  op.peer = {static_cast<std::int32_t>(row.integer(10)), row.integer(11) != 0};
  const std::string_view kind = row.text(12);
  op.direction = kind == "send" ? StoredOp::Direction::Send : kind == "recv" ? StoredOp::Direction::Recv : StoredOp::Direction::None;
  return op;
}

Mesh load_mesh(const Store& store, const std::string& schedule) {
  Mesh mesh;
  store.for_each(
      "SELECT json_extract(a.value, '$[0]'), json_extract(a.value, '$[1]') FROM schedule s, json_each(s.mesh) a WHERE s.id = ?1 ORDER BY "
      "a.key",
      {schedule}, [&](const Row& row) {
        mesh.axes.push_back({std::string(row.text(0)), index_at(row, 1)});
      });
  return mesh;
}

std::vector<Communicator> load_communicators(const Store& store, const std::string& schedule) {
  std::vector<Communicator> list;
  store.for_each("SELECT name FROM communicator WHERE schedule_id = ?1 ORDER BY comm", {schedule},
                 [&](const Row& row) { list.emplace_back().name = row.text(0); });
  store.for_each("SELECT c.comm, a.value FROM communicator c, json_each(c.axes) a WHERE c.schedule_id = ?1 ORDER BY c.comm, a.key",
                 {schedule}, [&](const Row& row) { list[index_at(row, 0)].axes.push_back(static_cast<std::size_t>(row.integer(1))); });
  store.for_each(
      "SELECT c.comm, g.key, p.value FROM communicator c, json_each(c.groups) g, json_each(g.value) p WHERE c.schedule_id = ?1 "
      "ORDER BY c.comm, g.key, p.key",
      {schedule}, [&](const Row& row) {
        auto& groups = list[index_at(row, 0)].groups;
        groups.resize(std::max(groups.size(), static_cast<std::size_t>(row.integer(1)) + 1));
        groups.back().push_back(index_at(row, 2));
      });
  return list;
}

}  // namespace

const StoredOp& StoredSchedule::op(std::uint32_t id) const {
  const auto after =
      std::upper_bound(programs_.begin(), programs_.end(), id, [](std::uint32_t value, const Block& b) { return value < b.first_op; });
  invariant(after != programs_.begin() && id - std::prev(after)->first_op < std::prev(after)->ops.size(),
            "a stored span names a stored op");
  const Block& block = *std::prev(after);
  return block.ops[id - block.first_op];
}

std::uint32_t StoredSchedule::lane_of(const StoredOp& op) const {
  return op.lane >= 0 ? static_cast<std::uint32_t>(op.lane) : static_cast<std::uint32_t>(lanes_[op.program].size());
}

std::string_view StoredSchedule::text(std::int64_t id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? std::string_view() : std::string_view(found->second);
}

RankId StoredSchedule::peer(const StoredOp& op, RankId rank) const {
  const CommInstances& comm = instances_[op.comm];
  const auto& members = comm.members[comm.instance_of[rank.value]];
  return members[op.peer.resolve(comm.member_of[rank.value], static_cast<std::uint32_t>(members.size()))];
}

StoredSchedule load_schedule(const Store& store, const std::string& run, const std::string& ranks) {
  StoredSchedule result;
  std::string schedule;
  store.for_each("SELECT schedule_id FROM run WHERE id = ?1 AND schedule_id IS NOT NULL", {run},
                 [&](const Row& row) { schedule = row.text(0); });
  if (schedule.empty()) return result;
  std::vector<std::int64_t> counts;
  store.for_each(
      "SELECT first_op, ops * (program IN (SELECT r.program FROM schedule_rank r JOIN json_each(?2) w ON w.value = r.rank "
      "WHERE r.schedule_id = ?1)) FROM program WHERE schedule_id = ?1 ORDER BY program",
      {schedule, ranks}, [&](const Row& row) {
        result.programs_.push_back({index_at(row, 0), {}});
        counts.push_back(row.integer(1));
      });
  for (std::size_t p = 0; p < counts.size(); ++p) {
    auto& [first, ops] = result.programs_[p];
    ops.reserve(static_cast<std::size_t>(counts[p]));
    store.for_each(kOps, {schedule, std::to_string(first), std::to_string(first + counts[p])},
                   [&ops = ops](const Row& row) { ops.push_back(op_at(row)); });
  }
  result.lanes_.resize(counts.size());
  store.for_each("SELECT program, name FROM lane WHERE schedule_id = ?1 ORDER BY program, lane", {schedule},
                 [&](const Row& row) { result.lanes_[index_at(row, 0)].emplace_back(row.text(1)); });
  store.for_each("SELECT id, value FROM string", {}, [&](const Row& row) { result.texts_.emplace(row.integer(0), row.text(1)); });
  const Mesh mesh = load_mesh(store, schedule);
  for (const Communicator& comm : load_communicators(store, schedule)) result.instances_.push_back(expand(mesh, comm));
  return result;
}

}  // namespace steptwin
