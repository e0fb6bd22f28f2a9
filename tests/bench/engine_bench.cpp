// Speed of the engine on a real 1F1B schedule of >= 4 M ops (p = 64), host clocks and rendezvous on.
// Yardstick: a bare loop finish = max(preds) + duration over the schedule's own op ids and one CSR of all orders that the
// semantics knows (dependencies, lane predecessor, counterpart), in topological order, durations known.
// Minima of 5 rounds inside one run; the ratio is what counts.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <vector>

#include "schedule/compile.h"
#include "schedule/ir/loop.h"
#include "schedule/ir/times_buffer.h"
#include "sim/cost/cost_models.h"
#include "sim/memory_curves.h"
#include "sim/pricing.h"
#include "sim/rules.h"

namespace steptwin {
namespace {

// Processor time of this thread: the machines are shared.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double seconds(const std::function<void()>& work) {
  const double begin = thread_seconds();
  work();
  return thread_seconds() - begin;
}

// A model of one layer a stage: 8 ops per micro-batch and rank (2 forward, 2 backward segments, 4 messages).
Scenario scenario(std::int64_t micro_batches) {
  return parse_scenario(fmt::format(R"({{"format":1,"name":"bench","model":{{"family":"gpt","layers":64,"hidden":64,"heads":4,"vocabulary":256,"positions":64}},
    "mesh":{{"pp":64}},"batch":{{"micro_batches":{},"micro_batch_size":1,"sequence_length":64}},"schedule":{{"order":"1f1b"}},
    "machine":{{"preset":"h200_node"}}}})", micro_batches), "<bench>");
}

struct Yardstick {
  std::vector<std::uint32_t> order, offsets, preds;
  std::vector<std::int64_t> duration, finish;

  // The finish times of the engine sort the ops: a topological order that follows time, as an event simulator would go.
  Yardstick(const Schedule& schedule, const Matching& matching, const Pricing& pricing) {
    const auto ops = static_cast<std::uint32_t>(schedule.ops.size());
    std::vector<std::vector<std::uint32_t>> in(ops);
    duration.resize(ops);
    for (std::uint32_t r = 0; r < matching.ranks.size(); ++r) {
      const ProgramTables& t = matching.tables[matching.ranks[r].tables];
      const std::uint32_t first = schedule.programs[t.program.value].first_op.value;
      for (std::uint32_t i = 0; i + 1 < t.nodes.size(); ++i) {
        duration[first + i] = pricing.of(r, i).duration;
        for (OpId dep : schedule.deps_of(OpId(first + i))) in[first + i].push_back(dep.value);
      }
      for (std::uint32_t l = 0; l < t.lanes; ++l)
        for (std::uint32_t k = t.lane_begin[l] + 1; k < t.lane_begin[l + 1]; ++k) in[first + t.lane_ops[k]].push_back(first + t.lane_ops[k - 1]);
      for (std::uint32_t c = 0; c < t.channels.size(); ++c) {
        if (t.channels[c].collective || t.channels[c].send) continue;
        const Counterpart& other = matching.ranks[r].counterparts[c];
        const ProgramTables& o = matching.tables[matching.ranks[other.rank].tables];
        const std::uint32_t peer_first = schedule.programs[o.program.value].first_op.value;
        for (std::uint32_t k = 0; k < t.channels[c].ops.size(); ++k) in[first + t.channels[c].ops[k]].push_back(peer_first + o.channels[other.channel].ops[k]);
      }
    }
    offsets.assign(ops + 1, 0);
    for (std::uint32_t i = 0; i < ops; ++i) offsets[i + 1] = offsets[i] + static_cast<std::uint32_t>(in[i].size());
    preds.reserve(offsets[ops]);
    for (auto& list : in) preds.insert(preds.end(), list.begin(), list.end());
    topological(ops);
    finish.resize(ops);
  }

  void topological(std::uint32_t ops) {
    std::vector<std::uint32_t> missing(ops), next_begin(ops + 1, 0), next(preds.size());
    for (std::uint32_t p : preds) ++next_begin[p + 1];
    for (std::uint32_t i = 0; i < ops; ++i) next_begin[i + 1] += next_begin[i], missing[i] = offsets[i + 1] - offsets[i];
    auto fill = next_begin;
    for (std::uint32_t i = 0; i < ops; ++i)
      for (std::uint32_t k = offsets[i]; k < offsets[i + 1]; ++k) next[fill[preds[k]]++] = i;
    for (std::uint32_t i = 0; i < ops; ++i)
      if (missing[i] == 0) order.push_back(i);
    for (std::size_t head = 0; head < order.size(); ++head)
      for (std::uint32_t k = next_begin[order[head]]; k < next_begin[order[head] + 1]; ++k)
        if (--missing[next[k]] == 0) order.push_back(next[k]);
  }

  void run() {
    for (std::uint32_t op : order) {
      std::int64_t at = 0;
      for (std::uint32_t k = offsets[op]; k < offsets[op + 1]; ++k) at = std::max(at, finish[preds[k]]);
      finish[op] = at + duration[op];
    }
  }
};

struct Measured {
  double bare = 0, replay = 0, memory = 0, event = 0;
  double ops = 0;
};

Measured measure(std::int64_t micro_batches, bool print) {
  const Scenario s = scenario(micro_batches);
  Schedule schedule;
  const double compiling = seconds([&] { schedule = compile(s); });
  Matching matching;
  const double match_time = seconds([&] { matching = match(schedule, Folding::None); });
  const auto costs = analytic_costs(*s.machine);
  Pricing pricing;
  const double price_time = seconds([&] { pricing = price(schedule, matching, *costs, true); });
  Measured m;
  m.ops = static_cast<double>(schedule.ops.size());
  Yardstick yardstick(schedule, matching, pricing);
  std::vector<MemoryPlan> plans;
  for (const ProgramTables& t : matching.tables) plans.emplace_back(schedule, schedule.programs[t.program.value]);
  TimesBuffer times(schedule.ops.size());
  const auto run_replay = [&](RankDone done) {
    ReplayRules rules(pricing, std::move(done), {});
    EngineLoop<ReplayRules> loop(matching, rules, 1, times.data());
    if (!loop.run()) throw std::runtime_error("deadlock");
  };
  MemoryWalker walker;
  m.bare = m.replay = m.memory = m.event = 1e9;
  for (int round = 0; round < 5; ++round) {
    m.bare = std::min(m.bare, seconds([&] { yardstick.run(); }));
    m.replay = std::min(m.replay, seconds([&] { run_replay({}); }));
    m.memory = std::min(m.memory, seconds([&] {
      run_replay([&](std::uint32_t r, std::uint32_t, const OpTimes* of_rank) {
        MemoryResult out;
        walker.walk(plans[matching.ranks[r].tables], matching.ranks[r].rank, of_rank, MemoryWalker::Detail::Peaks, out);
      });
    }));
    m.event = std::min(m.event, seconds([&] {
      const SharedResources none;
      EventRules rules(pricing, matching, none, {}, {});
      EngineLoop<EventRules> loop(matching, rules, 1, times.data());
      if (!loop.run()) throw std::runtime_error("deadlock");
    }));
  }
  if (print) {
    fmt::print("{:.2f} M ops, {:.2f} dependencies + lane + counterpart edges an op; compile {:.2f} s, match {:.2f} s, price {:.2f} s\n", m.ops / 1e6,
               static_cast<double>(yardstick.preds.size()) / m.ops, compiling, match_time, price_time);
    const auto line = [&](const char* what, double t, const char* limit) {
      fmt::print("{:34} {:7.1f} ns/op {:8.2f} M ops/s  ratio {:6.2f}  {}\n", what, t / m.ops * 1e9, m.ops / t / 1e6, t / m.bare, limit);
    };
    line("bare loop (yardstick)", m.bare, "");
    line("replay, four times of every op", m.replay, "limit 2.5");
    line("replay with memory curves", m.memory, "limit 8");
    line("event agenda", m.event, "limit 20, aim 12");
  }
  return m;
}

}  // namespace
}  // namespace steptwin

int main() {
  using namespace steptwin;
  const Measured half = measure(4000, false);
  const Measured full = measure(8000, true);
  fmt::print("doubling ops ({:.2f} M -> {:.2f} M): replay x{:.2f}, with memory x{:.2f}, event x{:.2f}  limit 2.5\n", half.ops / 1e6, full.ops / 1e6,
             full.replay / half.replay, full.memory / half.memory, full.event / half.event);
}
