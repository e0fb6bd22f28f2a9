#include "analysis/stored_schedule.h"

#include <algorithm>

#include "schedule/base/error.h"
#include "schedule/ir/limits.h"

namespace steptwin {
namespace {

std::int32_t or_minus_one(const Row& row, int column) {
  return row.type(column) == Table::Type::Null ? -1 : static_cast<std::int32_t>(row.integer(column));
}

std::uint32_t index_at(const Row& row, int column, std::size_t limit, const char* what) {
  return static_cast<std::uint32_t>(checked_index(row.integer(column), limit, what));
}

constexpr const char* kOps =
    "SELECT o.program, o.lane, o.name, o.segment, o.stage, o.micro_batch, o.layer, o.bytes, o.group_no, o.comm, o.peer, o.peer_relative, "
    "k.value, o.op FROM op o JOIN string k ON k.id = o.kind WHERE o.schedule_id = ?1 AND o.op >= ?2 AND o.op < ?3 ORDER BY o.op";

// `lanes` of the program, `comms` of the schedule.
StoredOp op_at(const Row& row, std::uint32_t program, std::size_t lanes, std::size_t comms) {
  StoredOp op;
  op.program = program;
  if (row.integer(0) != program) throw_damaged("an op stands in another program's place");
  if (row.type(1) != Table::Type::Null) op.lane = static_cast<std::int32_t>(index_at(row, 1, lanes, "the lane of an op"));
  op.name = row.integer(2);
  op.segment = row.integer(3);
  op.stage = or_minus_one(row, 4);
  op.micro_batch = or_minus_one(row, 5);
  op.layer = or_minus_one(row, 6);
  op.bytes = row.integer(7);
  op.group = or_minus_one(row, 8);
  op.peer = {static_cast<std::int32_t>(row.integer(10)), row.integer(11) != 0};
  const std::string_view kind = row.text(12);
  op.direction = kind == "send" ? StoredOp::Direction::Send : kind == "recv" ? StoredOp::Direction::Recv : StoredOp::Direction::None;
  if (op.direction != StoredOp::Direction::None) op.comm = index_at(row, 9, comms, "the communicator of an op");
  return op;
}

Mesh load_mesh(const Store& store, const std::string& schedule) {
  Mesh mesh;
  std::uint64_t ranks = 1;
  store.for_each(
      "SELECT json_extract(a.value, '$[0]'), json_extract(a.value, '$[1]') FROM schedule s, json_each(s.mesh) a WHERE s.id = ?1 ORDER BY "
      "a.key",
      {schedule}, [&](const Row& row) {
        mesh.axes.push_back({std::string(row.text(0)), index_at(row, 1, kMaxRanks + 1, "the mesh")});
        ranks *= mesh.axes.back().size;
        if (ranks == 0 || ranks > kMaxRanks) throw_damaged("the mesh");
      });
  return mesh;
}

std::vector<Communicator> load_communicators(const Store& store, const std::string& schedule, const Mesh& mesh) {
  std::vector<Communicator> list;
  store.for_each("SELECT name FROM communicator WHERE schedule_id = ?1 ORDER BY comm", {schedule},
                 [&](const Row& row) { list.emplace_back().name = row.text(0); });
  store.for_each("SELECT c.comm, a.value FROM communicator c, json_each(c.axes) a WHERE c.schedule_id = ?1 ORDER BY c.comm, a.key",
                 {schedule}, [&](const Row& row) {
                   Communicator& comm = list[index_at(row, 0, list.size(), "a communicator")];
                   comm.axes.push_back(index_at(row, 1, mesh.axes.size(), "the axis of a communicator"));
                   if (std::count(comm.axes.begin(), comm.axes.end(), comm.axes.back()) > 1) throw_damaged("the axes of a communicator");
                 });
  store.for_each(
      "SELECT c.comm, g.key, p.value FROM communicator c, json_each(c.groups) g, json_each(g.value) p WHERE c.schedule_id = ?1 "
      "ORDER BY c.comm, g.key, p.key",
      {schedule}, [&](const Row& row) {
        auto& groups = list[index_at(row, 0, list.size(), "a communicator")].groups;
        const std::size_t group = index_at(row, 1, mesh.size(), "a group of a communicator");
        groups.resize(std::max(groups.size(), group + 1));
        groups[group].push_back(index_at(row, 2, mesh.size(), "a member of a group"));
      });
  return list;
}

}  // namespace

void throw_damaged(const char* what) {
  throw EnvironmentError(EnvironmentError::Kind::Database, std::string("the database is damaged: ") + what + " makes no sense",
                         "steptwin runs rm removes the run; steptwin runs check tells more");
}

std::size_t checked_index(std::int64_t value, std::size_t limit, const char* what) {
  if (value < 0 || static_cast<std::uint64_t>(value) >= limit) throw_damaged(what);
  return static_cast<std::size_t>(value);
}

const StoredOp& StoredSchedule::op(std::uint32_t id) const {
  const auto after =
      std::upper_bound(programs_.begin(), programs_.end(), id, [](std::uint32_t value, const Block& b) { return value < b.first_op; });
  if (after == programs_.begin() || id - std::prev(after)->first_op >= std::prev(after)->ops.size()) throw_damaged("the op of a span");
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
  const std::size_t own = checked_index(rank.value, comm.instance_of.size(), "a rank");
  const auto& members = comm.members[checked_index(comm.instance_of[own], comm.members.size(), "the communicator of a rank")];
  return members[checked_index(op.peer.resolve(comm.member_of[own], static_cast<std::uint32_t>(members.size())), members.size(), "a peer")];
}

StoredSchedule load_schedule(const Store& store, const std::string& run, const std::string& ranks) {
  StoredSchedule result;
  std::string schedule;
  store.for_each("SELECT schedule_id FROM run WHERE id = ?1 AND schedule_id IS NOT NULL", {run},
                 [&](const Row& row) { schedule = row.text(0); });
  if (schedule.empty()) return result;
  const Mesh mesh = load_mesh(store, schedule);
  for (const Communicator& comm : load_communicators(store, schedule, mesh)) result.instances_.push_back(expand(mesh, comm));
  std::vector<std::int64_t> counts;
  store.for_each(
      "SELECT first_op, ops * (program IN (SELECT r.program FROM schedule_rank r JOIN json_each(?2) w ON w.value = r.rank "
      "WHERE r.schedule_id = ?1)) FROM program WHERE schedule_id = ?1 ORDER BY program",
      {schedule, ranks}, [&](const Row& row) {
        result.programs_.push_back({index_at(row, 0, UINT32_MAX, "the first op of a program"), {}});
        counts.push_back(index_at(row, 1, UINT32_MAX, "the ops of a program"));
      });
  if (!std::is_sorted(result.programs_.begin(), result.programs_.end(),
                      [](const auto& x, const auto& y) { return x.first_op < y.first_op; }))
    throw_damaged("the order of the programs");
  result.lanes_.resize(counts.size());
  store.for_each("SELECT program, name FROM lane WHERE schedule_id = ?1 ORDER BY program, lane", {schedule}, [&](const Row& row) {
    result.lanes_[index_at(row, 0, counts.size(), "the program of a lane")].emplace_back(row.text(1));
  });
  for (std::uint32_t p = 0; p < counts.size(); ++p) {
    auto& [first, ops] = result.programs_[p];
    store.for_each(kOps, {schedule, std::to_string(first), std::to_string(first + counts[p])}, [&, &list = ops, p](const Row& row) {
      if (row.integer(13) != static_cast<std::int64_t>(result.programs_[p].first_op + list.size())) throw_damaged("the numbers of the ops");
      list.push_back(op_at(row, p, result.lanes_[p].size(), result.instances_.size()));
    });
  }
  store.for_each("SELECT id, value FROM string", {}, [&](const Row& row) { result.texts_.emplace(row.integer(0), row.text(1)); });
  return result;
}

}  // namespace steptwin
