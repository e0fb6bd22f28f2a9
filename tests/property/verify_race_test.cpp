// The vector clocks of RACE against the obvious referee: the transitive closure of lane order, dependencies, groups and host
// waits, and a look at every pair of accesses.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "schedule/ir/builder.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"

namespace steptwin {
namespace {

constexpr std::uint32_t kLanes = 3;
constexpr std::uint32_t kBuffers = 3;

Schedule random_program(std::mt19937_64& random) {
  ScheduleBuilder b(Mesh{{{"dp", 1}}});
  const CommId comm = b.communicator("c", {"dp"});
  b.begin_program("p", {RankId(0)});
  for (std::uint32_t l = 0; l < kLanes; ++l) b.lane("l" + std::to_string(l), Engine::Network);
  for (std::uint32_t i = 0; i < kBuffers; ++i) b.buffer("x" + std::to_string(i), Space::Device, Category::Other, Bytes(12), {}, true);
  const std::uint32_t ops = 2 + static_cast<std::uint32_t>(random() % 10);
  GroupId group;
  LaneId group_lane;
  for (std::uint32_t i = 0; i < ops; ++i) {
    Op op;
    op.lane = LaneId(static_cast<std::uint32_t>(random() % kLanes));
    std::vector<OpId> deps;
    for (std::uint32_t k = 0; k < i; ++k)
      if (random() % 6 == 0 && !(group.valid() && b.at(OpId(k)).group == group)) deps.push_back(OpId(k));
    std::vector<Access> accesses;
    if (random() % 2 == 0) {
      const std::uint32_t pieces = 1 + static_cast<std::uint32_t>(random() % 3);
      const Part part{Part::Kind::Piece, static_cast<std::uint32_t>(random() % pieces), pieces};
      accesses.push_back({BufferId(static_cast<std::uint32_t>(random() % kBuffers)), static_cast<AccessMode>(random() % 4), part});
    }
    if (i > 0 && random() % 6 == 0) {
      op.body = HostWait{OpId(static_cast<std::uint32_t>(random() % i))};
      op.lane = LaneId();
      accesses.clear();
      group = GroupId();
    } else {
      const bool stays = group.valid() && random() % 2 == 0;
      group = stays ? group : random() % 4 == 0 ? b.new_group() : GroupId();
      if (stays) op.lane = group_lane;
      group_lane = op.lane;
      op.group = group;
      // the payload must fit the access, or verify stops at ACCESS
      const std::int64_t bytes = accesses.empty() || accesses[0].mode == AccessMode::Hold ? 0 : 12 / accesses[0].part.b;
      op.body = AllReduce{comm, DType::Bf16, Bytes(bytes), AllReduce::Reduction::Sum};
      if (group.valid() && !stays)
        deps.erase(std::remove_if(deps.begin(), deps.end(), [&](OpId d) { return b.at(d).group == group; }), deps.end());
    }
    b.op(op, accesses, deps);
  }
  return b.finish();
}

// before[i][j]: has op i surely ended when op j starts?
std::vector<std::vector<bool>> closure(const Schedule& s) {
  const std::uint32_t n = s.programs[0].op_count;
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n, false));
  const auto same_group = [&](std::uint32_t a, std::uint32_t b) { return s.ops[a].group.valid() && s.ops[a].group == s.ops[b].group; };
  const auto edge = [&](std::uint32_t a, std::uint32_t b) {  // groups start and end as one
    for (std::uint32_t x = 0; x < n; ++x)
      for (std::uint32_t y = 0; y < n; ++y)
        if ((x == a || same_group(x, a)) && (y == b || same_group(y, b)) && !same_group(x, y)) before[x][y] = true;
  };
  for (std::uint32_t j = 0; j < n; ++j) {
    for (std::uint32_t i = 0; i < j; ++i)
      if (s.ops[i].lane.valid() && s.ops[i].lane == s.ops[j].lane && !same_group(i, j)) edge(i, j);
    for (OpId dep : s.deps_of(OpId(j)))
      if (s.ops[j].lane.valid()) edge(dep.value, j);
    if (const auto* wait = std::get_if<HostWait>(&s.ops[j].body))
      for (std::uint32_t later = j; later < n; ++later) edge(wait->target.value, later);
    if (!s.ops[j].lane.valid())
      for (std::uint32_t later = j + 1; later < n; ++later) edge(j, later);
  }
  for (std::uint32_t k = 0; k < n; ++k)
    for (std::uint32_t i = 0; i < n; ++i)
      for (std::uint32_t j = 0; j < n; ++j)
        if (before[i][k] && before[k][j]) before[i][j] = true;
  return before;
}

bool conflict(const Schedule& s, std::uint32_t i, std::uint32_t j) {
  for (const Access& a : s.accesses_of(OpId(i)))
    for (const Access& b : s.accesses_of(OpId(j))) {
      if (a.buffer != b.buffer || a.mode == AccessMode::Hold || b.mode == AccessMode::Hold) continue;
      if (a.mode == AccessMode::Read && b.mode == AccessMode::Read) continue;
      const Buffer& buffer = s.programs[0].buffers[a.buffer.value];
      const ByteRange x = byte_range(buffer, s, a.part, 0, 1), y = byte_range(buffer, s, b.part, 0, 1);
      if (x.first < y.first + y.size && y.first < x.first + x.size) return true;
    }
  return false;
}

TEST(VerifyRace, AgreesWithTheTransitiveClosure) {
  std::mt19937_64 random(11);
  int races = 0, clean = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const Schedule s = random_program(random);
    const auto before = closure(s);
    std::vector<std::uint32_t> expected;  // ops that conflict with an earlier unordered one
    for (std::uint32_t j = 0; j < s.programs[0].op_count; ++j)
      for (std::uint32_t i = 0; i < j; ++i)
        if (conflict(s, i, j) && !before[i][j]) {
          expected.push_back(j);
          break;
        }
    const auto found = verify(s);
    const auto first = std::find_if(found.begin(), found.end(), [](const Diagnostic& d) { return d.code == "RACE"; });
    for (const Diagnostic& d : found) ASSERT_EQ(d.code, "RACE") << format_diagnostic(d) << "\n" << print_schedule(s);
    ASSERT_EQ(first != found.end(), !expected.empty()) << print_schedule(s);
    const std::string at = expected.empty() ? "" : "op " + std::to_string(expected.front()) + " of p:";
    ASSERT_TRUE(expected.empty() || first->text.starts_with(at)) << first->text << "\n" << print_schedule(s);
    ++(expected.empty() ? clean : races);
  }
  EXPECT_GT(races, 2000);
  EXPECT_GT(clean, 2000);
}

}  // namespace
}  // namespace steptwin
