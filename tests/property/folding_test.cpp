// Folding is exact: every rank of a folded run has the spans and peaks that it has when all ranks are simulated, and the outcome is
// the same. Random schedules of programs with several ranks: messages along the pipeline, rings and all-to-all by messages among the
// ranks of a program, collectives, on machines whose nodes cut the mesh anywhere.
#include <gtest/gtest.h>

#include <map>

#include "schedule/ir/builder.h"
#include "schedule/ir/matching.h"
#include "schedule/ir/text.h"
#include "sim/simulate.h"
#include "tests/support/random_schedule.h"

namespace steptwin {
namespace {

// Communication that crosses nodes takes longer.
class LevelCosts : public CostModel {
 public:
  std::string name() const override { return "levels"; }
  Cost compute(const Schedule&, const Program&, const Op&) const override { return {}; }
  Cost copy(const Schedule&, const Program&, OpId) const override { return {}; }
  Cost communicate(const Schedule&, const Program&, const Op& op, const CommShape& shape) const override {
    return {Duration(bytes_of(op.body).value * shape.nodes + shape.members_per_node), Provenance::Given};
  }
  Launch launch(const Schedule&, const Op&) const override { return {Duration(1), Duration(1)}; }
};

// One program per pipeline coordinate, `dp` ranks each; ops are drafted along one global order.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed), pp_(1 + random_.below(4)), dp_(1 + random_.below(4)), kinds_(seed % 3 == 0 ? 6 : 5), ops_(pp_) {}

  Schedule make() {
    for (std::uint32_t left = 1 + random_.below(40); left-- > 0;) round();
    ScheduleBuilder b(Mesh{{{"pp", pp_}, {"dp", dp_}}});
    b.communicator("pp", {"pp"});
    b.communicator("dp", {"dp"});
    b.communicator("world", {"pp", "dp"});
    for (std::uint32_t p = 0; p < pp_; ++p) lay_out(b, p);
    return b.finish();
  }

 private:
  static constexpr CommId kPp{0}, kDp{1}, kWorld{2};

  void lay_out(ScheduleBuilder& b, std::uint32_t p) {
    std::vector<RankId> ranks;
    for (std::uint32_t d = 0; d < dp_; ++d) ranks.emplace_back(p * dp_ + d);
    b.begin_program("pp" + std::to_string(p), ranks);
    for (const char* lane : {"l0", "l1"}) b.lane(lane, Engine::Compute);
    const BufferId buffer = b.buffer("", Space::Device, Category::Activation, Bytes(8));
    for (const Op& op : ops_[p]) {
      if (!std::holds_alternative<Compute>(op.body)) {
        b.op(op, {}, {});
        continue;
      }
      const OpId id = b.compute(op.lane, op.label, WorkId(), {update(buffer)}, {});
      b.at(id).given = op.given;
    }
  }

  void add(std::uint32_t program, OpBody body, GroupId group = {}, std::uint32_t lane = 2) {
    Op op;
    op.body = body;
    op.lane = LaneId(lane < 2 ? lane : random_.below(2));
    op.group = group;
    if (std::holds_alternative<Compute>(body)) op.given = Duration(random_.below(10));
    ops_[program].push_back(op);
  }

  void round() {
    const std::uint32_t a = random_.below(pp_), b = random_.below(pp_);
    const Bytes bytes(1 + random_.below(5));
    switch (random_.below(kinds_)) {
      case 0: return add(a, Compute{});
      case 1: return a == b ? add(a, Compute{}) : message(a, b, bytes);
      case 2: return add(a, AllReduce{kDp, DType::Bf16, bytes});
      case 3: return ring(a, bytes);
      case 4:
        for (std::uint32_t p = 0; p < pp_; ++p) add(p, AllReduce{kWorld, DType::Bf16, bytes});
        return;
      default: return a == b ? add(a, Compute{}) : all_pairs(a, b, bytes);
    }
  }
  void message(std::uint32_t a, std::uint32_t b, Bytes bytes) {
    const auto step = static_cast<std::int32_t>(b) - static_cast<std::int32_t>(a);
    add(a, Send{kPp, DType::Bf16, bytes, {step, true}});
    add(b, Recv{kPp, DType::Bf16, bytes, {static_cast<std::int32_t>(a), false}});
  }
  void ring(std::uint32_t a, Bytes bytes) {
    const GroupId group(groups_++);
    const std::uint32_t lane = random_.below(2);
    add(a, Send{kDp, DType::Bf16, bytes, {1, true}}, group, lane);
    add(a, Recv{kDp, DType::Bf16, bytes, {-1, true}}, group, lane);
  }
  // Every rank of a sends to the ranks of b in ascending order; these receive from the ranks of a in ascending order. Rank i of a
  // comes i-th at every receiver: the ranks of one program differ in time.
  void all_pairs(std::uint32_t a, std::uint32_t b, Bytes bytes) {
    const std::uint32_t out = random_.below(2), in = random_.below(2);
    for (std::uint32_t d = 0; d < dp_; ++d) add(a, Send{kWorld, DType::Bf16, bytes, {static_cast<std::int32_t>(b * dp_ + d), false}}, {}, out);
    for (std::uint32_t d = 0; d < dp_; ++d) add(b, Recv{kWorld, DType::Bf16, bytes, {static_cast<std::int32_t>(a * dp_ + d), false}}, {}, in);
  }

  test::Random random_;
  std::uint32_t pp_, dp_, kinds_, groups_ = 0;
  std::vector<std::vector<Op>> ops_;  // [program]
};

using Times = std::vector<std::int64_t>;
std::map<RankId, Times> times_by_rank(const Trace& trace) {
  std::map<RankId, Times> out;
  for (const Span& s : trace.spans)
    for (SimTime t : {s.issue, s.ready, s.start, s.end}) out[s.rank].push_back(ns(t));
  return out;
}

Trace run(const Schedule& schedule, const Machine& machine, FoldChoice fold) {
  SimulateOptions options;
  options.fold = fold;
  options.steps = 2;
  return simulate(schedule, LevelCosts(), &machine, options);
}

// Empty when every rank of the folded run is like itself in the expanded one.
std::string difference(const Schedule& schedule, const Trace& folded, const Trace& expanded) {
  if (folded.outcome.status != expanded.outcome.status) return "the outcomes differ";
  if (folded.outcome.status != Status::Ok) return "";
  if (folded.step_time != expanded.step_time) return "the step times differ";
  auto of_stand_in = times_by_rank(folded), own = times_by_rank(expanded);
  for (std::uint32_t r = 0; r < schedule.mesh.size(); ++r) {
    if (of_stand_in[folded.stand_in[r]] != own[RankId(r)])
      return "rank " + std::to_string(r) + " differs from its stand-in " + std::to_string(folded.stand_in[r].value);
  }
  return "";
}

TEST(Folding, EveryRankIsLikeItsStandIn) {
  std::size_t simulated = 0, all = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    const Schedule schedule = Generator(seed).make();
    Machine machine;
    machine.devices_per_node = seed % 2 == 0 ? 64 : 1 + static_cast<int>(seed % 5);
    const Trace folded = run(schedule, machine, FoldChoice::Auto), expanded = run(schedule, machine, FoldChoice::Off);
    ASSERT_EQ(difference(schedule, folded, expanded), "") << "seed " << seed << "\n" << print_schedule(schedule);
    simulated += folded.simulated.size();
    all += expanded.simulated.size();
  }
  EXPECT_LT(simulated, all * 3 / 4);  // it does fold
}

// Ranks 0 and 1 send to the same classes, but rank 0 comes first at every receiver.
TEST(Folding, RanksThatMeetDifferentFifosAreKeptApart) {
  const Schedule schedule = parse_schedule(R"(mesh pp 2 dp 2
comm world axes pp dp
program a ranks pp=0
  lane n network
  0 send on world to 2 bytes 1B lane n time 1us
  1 send on world to 3 bytes 1B lane n time 1us
program b ranks pp=1
  lane n network
  0 recv on world from 0 bytes 1B lane n time 1us
  1 recv on world from 1 bytes 1B lane n time 1us
)",
                                           "t.sched");
  EXPECT_EQ(match(schedule, Folding::Exact).ranks.size(), 4u);
}

}  // namespace
}  // namespace steptwin
