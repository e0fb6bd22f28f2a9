// The timeline of a GPU run: fed with what a device would have measured of a simulated run, it must give that run's times back.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "exec/cuda/timeline.h"
#include "exec/lower.h"
#include "tests/support/rehearsal.h"
#include "traces/check_trace.h"

namespace steptwin {
namespace {

struct Case {
  Schedule schedule;
  Matching matching;
  std::vector<InstructionList> lists;
  Trace trace;
  std::uint32_t steps = 2;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, const Span*> spans;
};

Case simulated(const test::GivenPipeline& pipeline) {
  SimulateOptions options;
  options.fold = FoldChoice::Off, options.steps = 2;
  test::Rehearsal rehearsal = test::rehearse(pipeline, options);
  Case c{std::move(rehearsal.schedule), {}, {}, std::move(rehearsal.trace), 2, {}};
  c.matching = match(c.schedule, Folding::None);
  for (const ProgramTables& tables : c.matching.tables) c.lists.push_back(lower(c.schedule, tables));
  for (const Span& span : c.trace.spans) {
    std::uint32_t rank = 0;
    while (c.matching.ranks[rank].rank != span.rank) ++rank;
    c.spans[{rank, span.step, span.op.value - c.schedule.program_of(span.op).first_op.value}] = &span;
  }
  return c;
}

// The members of the transfer that op belongs to: the k-th ops of counterpart channels.
std::vector<std::pair<std::uint32_t, std::uint32_t>> members_of(const Case& c, std::uint32_t rank, std::uint32_t op) {
  const OpNode& node = c.matching.tables[c.matching.ranks[rank].tables].nodes[op];
  if (node.kind == OpNode::Kind::Local) return {{rank, op}};
  const Counterpart& peer = c.matching.ranks[rank].counterparts[node.channel];
  const auto op_of = [&](std::uint32_t r, std::uint32_t channel) {
    return c.matching.tables[c.matching.ranks[r].tables].channels[channel].ops[node.sequence];
  };
  if (node.kind == OpNode::Kind::Message) return {{rank, op}, {peer.rank, op_of(peer.rank, peer.channel)}};
  std::vector<std::pair<std::uint32_t, std::uint32_t>> members;
  for (const InstanceMember& m : c.matching.instances[peer.rank].members) members.emplace_back(m.rank, op_of(m.rank, m.channel));
  return members;
}

void feed(const Case& c, Timeline& timeline) {
  std::vector<std::tuple<SimTime, SimTime, std::uint32_t, std::uint32_t, std::uint32_t>> order;  // start, end, step, rank, op
  for (const auto& [key, span] : c.spans) order.emplace_back(span->start, span->end, std::get<1>(key), std::get<0>(key), std::get<2>(key));
  std::sort(order.begin(), order.end());
  for (const auto& [start, end, step, rank, op] : order) {
    const OpNode& node = c.matching.tables[c.matching.ranks[rank].tables].nodes[op];
    auto members = members_of(c, rank, op);
    if (node.kind != OpNode::Kind::HostWait && std::pair(rank, op) == *std::min_element(members.begin(), members.end()))
      timeline.enqueued(step, std::move(members));
  }
  for (std::uint32_t rank = 0; rank < c.matching.ranks.size(); ++rank) {
    for (std::uint32_t step = 0; step < c.steps; ++step) {
      std::vector<Timeline::Measured> ops;
      for (std::uint32_t op = 0; c.spans.contains({rank, step, op}); ++op) {
        const Span& span = *c.spans.at({rank, step, op});
        const bool local = c.matching.tables[c.matching.ranks[rank].tables].nodes[op].kind == OpNode::Kind::Local;
        ops.push_back({ns(span.issue), local ? ns(span.start) : 0, ns(span.end)});
      }
      timeline.measured(rank, step, std::move(ops));
    }
  }
}

TEST(Timeline, gives_the_times_of_a_simulated_run_back) {
  for (const char* p2p : {"lanes", "one_lane", "grouped"}) {
    for (const std::int64_t dp : {1, 2}) {
      test::GivenPipeline pipeline;
      pipeline.p = 4, pipeline.m = 6, pipeline.dp = dp, pipeline.p2p = p2p, pipeline.hop_ns = 130, pipeline.optimizer_ns = 77,
      pipeline.tied = true;
      const Case c = simulated(pipeline);
      Timeline timeline(c.matching, c.lists, c.steps);
      feed(c, timeline);
      const auto times = timeline.times();
      for (const auto& [key, span] : c.spans) {
        const auto& [rank, step, op] = key;
        const OpTimes& t = times.at(rank).at(step).at(op);
        const auto what = std::string(p2p) + " dp " + std::to_string(dp) + " rank " + std::to_string(rank) + " step " +
                          std::to_string(step) + " op " + std::to_string(op);
        EXPECT_EQ(t.end, ns(span->end)) << what;
        if (c.matching.tables[c.matching.ranks[rank].tables].nodes[op].kind == OpNode::Kind::HostWait) continue;
        EXPECT_EQ(t.issue, ns(span->issue)) << what;
        EXPECT_EQ(t.ready, ns(span->ready)) << what;
        EXPECT_EQ(t.start, ns(span->start)) << what;
      }
    }
  }
}

TEST(Timeline, moves_a_time_that_contradicts_the_schedule_up_to_what_it_waits_for) {
  test::GivenPipeline pipeline;
  pipeline.p = 2, pipeline.m = 3, pipeline.hop_ns = 10;
  Case c = simulated(pipeline);
  for (Span& span : c.trace.spans) {  // a device clock that is 400 ns behind the host's
    span.start -= Duration(400);
    span.end -= Duration(400);
  }
  Timeline timeline(c.matching, c.lists, c.steps);
  feed(c, timeline);
  const auto times = timeline.times();
  Trace trace = c.trace;
  for (std::size_t i = 0; i < trace.spans.size(); ++i) {
    Span& span = trace.spans[i];
    std::uint32_t rank = 0;
    while (c.matching.ranks[rank].rank != span.rank) ++rank;
    const OpTimes& t = times[rank][span.step][span.op.value - c.schedule.program_of(span.op).first_op.value];
    span.issue = at_ns(t.issue), span.ready = at_ns(t.ready), span.start = at_ns(t.start), span.end = at_ns(t.end);
  }
  for (const Diagnostic& d : check_trace(c.schedule, trace, c.steps)) ADD_FAILURE() << d.code << " " << d.text;
}

TEST(Timeline, steps_that_one_rank_did_not_finish_are_left_out) {
  test::GivenPipeline pipeline;
  pipeline.p = 2, pipeline.m = 2;
  const Case c = simulated(pipeline);
  Timeline timeline(c.matching, c.lists, c.steps);
  timeline.measured(0, 0, std::vector<Timeline::Measured>(c.schedule.programs[0].op_count));
  for (const auto& rank : timeline.times()) EXPECT_TRUE(rank.empty());
}

}  // namespace
}  // namespace steptwin
