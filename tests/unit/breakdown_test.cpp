// The four classes of a rank's time, by hand-made spans.
#include "traces/breakdown.h"

#include <gtest/gtest.h>

#include "schedule/ir/builder.h"
#include "tests/support/sample_run.h"

namespace steptwin {
namespace {

using Row = std::array<std::int64_t, 4>;  // compute, exposed communication, other, bubble

Row classes(const RankBreakdown& b) { return {ns(b.compute), ns(b.exposed_communication), ns(b.other), ns(b.bubble)}; }

// One program of one rank with a compute lane, a second compute lane, a network lane and a copy lane, and its spans.
class Case {
 public:
  Case() : builder_(Mesh{{{"dp", 1}}}) {
    comm_ = builder_.communicator("dp", {"dp"});
    builder_.begin_program("all", {RankId(0)});
    compute_ = builder_.lane("compute", Engine::Compute);
    second_ = builder_.lane("compute2", Engine::Compute);
    network_ = builder_.lane("network", Engine::Network);
    copy_ = builder_.lane("copy", Engine::CopyDown);
  }
  OpId compute(Phase phase, std::int64_t ready, std::int64_t start, std::int64_t end, std::vector<OpId> deps = {}) {
    return compute_on(compute_, phase, ready, start, end, std::move(deps));
  }
  OpId compute_on(LaneId lane, Phase phase, std::int64_t ready, std::int64_t start, std::int64_t end, std::vector<OpId> deps = {}) {
    Label label;
    label.phase = phase;
    return note(builder_.compute(lane, label, {}, {}, std::move(deps)), ready, start, end);
  }
  OpId collective(std::int64_t start, std::int64_t end, std::vector<OpId> deps = {}) {
    return add(AllReduce{comm_, DType::Fp32, Bytes(8)}, network_, start, end, std::move(deps));
  }
  OpId copy(std::int64_t start, std::int64_t end) { return add(Copy{DType::Bf16, DType::Bf16, Bytes(8)}, copy_, start, end, {}); }
  OpId host_wait(OpId target, std::int64_t start, std::int64_t end) { return add(HostWait{target}, {}, start, end, {}); }
  OpId add(OpBody body, LaneId lane, std::int64_t start, std::int64_t end, std::vector<OpId> deps, GroupId group = {}) {
    Op op;
    op.body = body;
    op.lane = lane;
    op.group = group;
    return note(builder_.op(op, {}, std::move(deps)), start, start, end);
  }
  RankBreakdown result(std::int64_t step, std::int64_t origin = 0) {
    const Schedule schedule = builder_.finish();
    const RankBreakdown b = break_down(schedule, RankId(0), spans_, at_ns(origin), Duration(step));
    EXPECT_EQ(b.compute + b.exposed_communication + b.other + b.bubble, Duration(step)) << "the classes add up to the step";
    return b;
  }
  ScheduleBuilder& builder() { return builder_; }
  CommId comm() const { return comm_; }
  LaneId network() const { return network_; }
  LaneId second() const { return second_; }
  std::vector<Span>& spans() { return spans_; }

 private:
  OpId note(OpId op, std::int64_t ready, std::int64_t start, std::int64_t end) {
    spans_.push_back({0, RankId(0), op, at_ns(0), at_ns(ready), at_ns(start), at_ns(end)});
    return op;
  }
  ScheduleBuilder builder_;
  CommId comm_;
  LaneId compute_, second_, network_, copy_;
  std::vector<Span> spans_;
};

TEST(Breakdown, PipelineSampleByHand) {
  const test::SampleRun run = test::pipeline_sample();
  EXPECT_EQ(classes(run.trace.breakdowns[0]), (Row{60, 6, 5, 28}));
  EXPECT_EQ(classes(run.trace.breakdowns[1]), (Row{60, 2, 5, 32}));
  EXPECT_EQ(run.trace.breakdowns[0].work, Duration(60));
  EXPECT_EQ(run.trace.breakdowns[0].rank_span, Duration(94));  // F0 starts at 0, B1 ends at 94; adam does not count
  EXPECT_EQ(run.trace.breakdowns[1].rank_span, Duration(60));
}

TEST(Breakdown, EveryPhaseOfTheModelIsComputeAndOnlyThose) {
  Case c;
  std::int64_t at = 0;
  for (const Phase phase : {Phase::Forward, Phase::Backward, Phase::InputGrad, Phase::WeightGrad, Phase::Recompute}) {
    c.compute(phase, at, at, at + 10);
    at += 10;
  }
  c.compute(Phase::Update, 50, 50, 57);
  c.compute(Phase::None, 57, 57, 60);
  EXPECT_EQ(classes(c.result(60)), (Row{50, 0, 10, 0}));
}

TEST(Breakdown, OverlappedCommunicationIsHidden) {
  Case c;
  const OpId f = c.compute(Phase::Forward, 0, 0, 100);
  c.collective(50, 150, {f});
  c.compute(Phase::Update, 100, 100, 120);  // the lane is not idle: other wins over exposed communication
  EXPECT_EQ(classes(c.result(200)), (Row{100, 30, 20, 50}));
}

TEST(Breakdown, TwoComputeLanesCountOnceWorkCountsTwice) {
  Case c;
  c.compute(Phase::Forward, 0, 0, 100);
  c.compute_on(c.second(), Phase::WeightGrad, 0, 50, 120);
  const RankBreakdown b = c.result(130);
  EXPECT_EQ(classes(b), (Row{120, 0, 0, 10}));
  EXPECT_EQ(b.work, Duration(170));
}

TEST(Breakdown, CopyIsOther) {
  Case c;
  c.compute(Phase::Forward, 0, 0, 10);
  c.copy(5, 30);
  EXPECT_EQ(classes(c.result(40)), (Row{10, 0, 20, 10}));
}

TEST(Breakdown, CollectiveOnTheComputeLaneIsCommunication) {
  Case c;
  c.compute(Phase::Forward, 0, 0, 10);
  Op op;
  op.body = AllReduce{c.comm(), DType::Fp32, Bytes(8)};
  op.lane = LaneId(0);
  op.label.phase = Phase::Forward;
  const OpId id = c.builder().op(op, {}, {});
  c.spans().push_back({0, RankId(0), id, at_ns(0), at_ns(10), at_ns(10), at_ns(25)});
  EXPECT_EQ(classes(c.result(25)), (Row{10, 15, 0, 0}));
}

TEST(Breakdown, WaitingForTheHostToIssueIsOther) {
  Case c;
  const OpId f = c.compute(Phase::Forward, 4, 4, 10);  // first launch at 4
  c.compute(Phase::Backward, 17, 17, 30, {f});         // its predecessor ended at 10, issued at 17
  EXPECT_EQ(classes(c.result(30)), (Row{6 + 13, 0, 4 + 7, 0}));
}

TEST(Breakdown, WaitingForADependencyIsBubble) {
  Case c;
  c.compute(Phase::Forward, 0, 0, 10);
  const OpId r = c.collective(40, 50);          // started late: its partner was late
  c.compute(Phase::Backward, 53, 53, 60, {r});  // 3 ns more for the host
  EXPECT_EQ(classes(c.result(60)), (Row{17, 10, 3, 30}));
}

TEST(Breakdown, HostHeldInAHostWaitIsNotIssuing) {
  Case c;
  const OpId r = c.collective(40, 50);  // the host waits for it from 0 to 50
  c.host_wait(r, 0, 50);
  c.compute(Phase::Forward, 53, 53, 60);  // no dependency: only the host held it back
  EXPECT_EQ(classes(c.result(60)), (Row{7, 10, 3, 40}));
}

TEST(Breakdown, DependentsOfAGroupWaitForItsLastMember) {
  Case c;
  const GroupId group = c.builder().new_group();
  const OpId first = c.add(AllReduce{c.comm(), DType::Fp32, Bytes(8)}, c.network(), 0, 10, {}, group);
  c.add(AllReduce{c.comm(), DType::Fp32, Bytes(8)}, c.network(), 5, 30, {}, group);
  c.compute(Phase::Forward, 30, 30, 40, {first});  // no waiting for the host between 10 and 30
  EXPECT_EQ(classes(c.result(40)), (Row{10, 30, 0, 0}));
}

TEST(Breakdown, CutToTheStep) {
  Case c;
  c.compute(Phase::Forward, 90, 90, 110);  // began before the origin
  c.compute(Phase::Backward, 110, 110, 250);
  const RankBreakdown b = c.result(100, 100);
  EXPECT_EQ(classes(b), (Row{100, 0, 0, 0}));
  EXPECT_EQ(b.work, Duration(160)) << "work is not cut";
}

TEST(Breakdown, NoSpansAndZeroDurations) {
  Case c;
  EXPECT_EQ(classes(break_down(Schedule{}, RankId(3), {}, at_ns(0), Duration(7))), (Row{0, 0, 0, 7}));
  c.compute(Phase::Forward, 0, 0, 0);
  EXPECT_EQ(classes(c.result(5)), (Row{0, 0, 0, 5}));
  Case empty_step;
  empty_step.compute(Phase::Forward, 0, 0, 10);
  EXPECT_EQ(classes(empty_step.result(0)), (Row{0, 0, 0, 0}));
}

TEST(Breakdown, MissingSpansOfAnInterruptedRank) {
  Case c;
  c.compute(Phase::Forward, 0, 0, 10);
  const OpId lost = c.collective(10, 20);
  c.compute(Phase::Backward, 25, 25, 30, {lost});
  c.spans().erase(c.spans().begin() + 1);
  EXPECT_EQ(classes(c.result(30)), (Row{15, 0, 15, 0}));
}

}  // namespace
}  // namespace steptwin
