// ZeRO-3 in the form deepspeed: the programs that it makes, when their ops run, and what lies in memory (specs/schedules.md 5.4).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "schedule/ir/liveness.h"
#include "schedule/ir/text.h"
#include "tests/support/random_schedule.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using test::compiled;
using test::problems_of;
using test::simulated;
using test::without_dependency;
using Case = test::ZeroCase;

// The model of ZeroCase, elements: embed 97 x 60 and 32 x 60; attn norm 60 + 60, qkv 10800 + 180, out 3600 + 60; mlp norm 60 + 60, up
// 14400 + 240, down 14400 + 60; head norm 60 + 60 and, untied, 97 x 60.
constexpr std::int64_t kAttention = 120 + 10980 + 3660, kMlp = 120 + 14640 + 14460, kEmbedding = 5820 + 1920, kNorm = 120;

Case deepspeed(const std::string& options, int dp = 2) {
  Case c;
  c.zero = R"("level": 3, "form": "deepspeed")" + (options.empty() ? "" : ", " + options);
  c.dp = dp;
  c.recompute = "none";
  return c;
}

const std::string kPlain = R"("prefetch_bucket_size": 0, "max_reuse_distance": 0, "param_persistence_threshold": 1000)";

std::string parameter_name(const Schedule& s, OpId id) {
  const Buffer& buffer = s.programs[0].buffers[s.accesses_of(id).front().buffer.value];
  std::string name = s.layouts[buffer.layout.value].tensors.front().name;
  for (const char* end : {".weight", "layers.", "embed.", "attn.", "mlp.", "head."})
    if (const std::size_t at = name.find(end); at != std::string::npos) name.erase(at, std::string(end).size());
  return name;
}

// The calls and segments of the first program in order of issue: "G[0.qkv 0.out]", "F.attn", "R[...]", "wait", "Fill".
std::string program_text(const Schedule& s) {
  std::string text;
  GroupId open;
  for (std::uint32_t i = 0; i < s.programs[0].op_count; ++i) {
    const OpId id(s.programs[0].first_op.value + i);
    const Op& op = s.ops[id.value];
    const bool gather = std::holds_alternative<AllGather>(op.body), reduce = std::holds_alternative<ReduceScatter>(op.body);
    if (op.label.phase == Phase::Update) break;
    if (open.valid() && op.group == open) {
      text.pop_back();
      text += " " + parameter_name(s, id) + "]";
      continue;
    }
    open = op.group;
    text += text.empty() ? "" : " ";
    if (gather || reduce) text += fmt::format("{}[{}]", gather ? "G" : "R", parameter_name(s, id));
    if (std::holds_alternative<HostWait>(op.body)) text += "wait";
    if (std::holds_alternative<Compute>(op.body)) text += fmt::format("{}.{}", name_of(op.label.phase), s.name(op.label.segment));
  }
  return text;
}

TEST(DeepspeedProgram, FetchesFreesAndReducesByItsRules) {
  Case c = deepspeed(kPlain + R"(, "reduce_bucket_size": 30000)");
  c.layers = 1;
  // Norms and biases are persistent. The fourth fetch is the first one that finds three before it. 120 + 29220 elements fit into a bucket,
  // the norm of the attention (to 29460) too, its qkv (10800) does not.
  EXPECT_EQ(program_text(compiled(c)),
            "G[token position] F.embed G[0.qkv 0.out] F.attn G[0.up 0.down] F.mlp G[token] wait F.head G[token] wait B.head "
            "G[0.up 0.down] wait B.mlp G[0.qkv 0.out] wait B.attn "
            "R[norm norm.bias 0.norm 0.norm.bias 0.up 0.up.bias 0.down 0.down.bias 0.norm 0.norm.bias] G[token position] wait B.embed "
            "R[0.qkv 0.qkv.bias 0.out 0.out.bias token position] wait");
}

TEST(DeepspeedProgram, PrefetchGoesOutBehindTheFetchInACallOfItsOwn) {
  Case c = deepspeed(R"("prefetch_bucket_size": 20000, "param_persistence_threshold": 1000)");
  c.layers = 1;
  // 5820 + 1920 are fetched; qkv, out (14400) and up (28800: the last one may exceed 20000) ahead of them, then down. The rest is there.
  EXPECT_EQ(program_text(compiled(c)).find("G[token position] G[0.qkv 0.out 0.up] F.embed G[0.down] F.attn F.mlp F.head B.head B.mlp"), 0u);
}

TEST(DeepspeedProgram, EveryMicroBatchIsATraceOfItsOwn) {
  Case c = deepspeed(R"("param_persistence_threshold": 1000)");
  c.layers = 1;
  c.micro_batches = 2;
  const std::string text = program_text(compiled(c)), once =
                                                          "G[token position] G[0.qkv 0.out 0.up 0.down] F.embed F.attn F.mlp F.head "
                                                          "B.head B.mlp B.attn B.embed "
                                                          "R[norm norm.bias 0.norm 0.norm.bias 0.up 0.up.bias 0.down 0.down.bias "
                                                          "0.norm 0.norm.bias 0.qkv 0.qkv.bias 0.out 0.out.bias token position]";
  std::string adds;
  for (int i = 0; i < 16; ++i) adds += " .accumulate";
  // One wait at the end of a backward. Three uses of a micro-batch wait for a fetch, so each of the second's finds three before it.
  std::string second = once;
  for (const char* at : {"G[0.qkv", "F.attn", "F.mlp"}) second.insert(second.find(at), "wait ");
  EXPECT_EQ(text, once + " wait " + second + adds + " wait");
}

TEST(DeepspeedProgram, WithoutOverlapReductionsStandOnTheComputeLane) {
  for (const bool overlap : {false, true}) {
    const Schedule s = compiled(deepspeed(fmt::format(R"("overlap_comm": {})", overlap)));
    for (const Op& op : s.ops)
      if (std::holds_alternative<ReduceScatter>(op.body)) {
        EXPECT_EQ(s.programs[0].lanes[op.lane.value].name, overlap ? "reduce" : "compute");
      }
  }
}

TEST(DeepspeedProgram, PersistentParametersAreGatheredBehindAdamInOneCall) {
  const Schedule s = compiled(deepspeed(R"("param_persistence_threshold": 1000)"));
  std::vector<GroupId> calls;
  std::int64_t elements = 0;
  bool adam_follows = false;
  for (const Op& op : s.ops) {
    if (op.label.phase != Phase::Update) continue;
    const auto* gather = std::get_if<AllGather>(&op.body);
    if (gather != nullptr) calls.push_back(op.group), elements += gather->bytes.value / 2;
    adam_follows = adam_follows || (!calls.empty() && gather == nullptr);
  }
  EXPECT_EQ(calls.size(), 3u * 8 + 2);
  EXPECT_EQ(std::count(calls.begin(), calls.end(), calls.front()), static_cast<std::ptrdiff_t>(calls.size()));
  EXPECT_EQ(elements, 3 * (120 + 180 + 60 + 120 + 240 + 60) + kNorm);
  EXPECT_FALSE(adam_follows);
}

struct Sums {
  std::int64_t gathered = 0, reduced = 0;  // elements
};
Sums traffic(const Schedule& s) {
  Sums sums;
  for (const Op& op : s.ops_of(s.programs[0])) {
    if (op.label.phase == Phase::Update) continue;
    if (const auto* gather = std::get_if<AllGather>(&op.body)) sums.gathered += gather->bytes.value / 2;
    if (const auto* reduce = std::get_if<ReduceScatter>(&op.body)) sums.reduced += reduce->bytes.value / 4;
  }
  return sums;
}

TEST(DeepspeedTraffic, OfTheOptions) {
  const std::int64_t layer = kAttention + kMlp, all = 3 * layer + kEmbedding + kNorm;
  for (const int micro_batches : {1, 3})
    for (const char* recompute : {"none", "full"}) {
      const bool again = std::string(recompute) == "full";
      const auto sums = [&](const std::string& options) {
        Case c = deepspeed(options);
        c.micro_batches = micro_batches;
        c.recompute = recompute;
        return traffic(compiled(c));
      };
      // Everything stays from its first use in the micro-batch to its last.
      const std::string whole = R"("param_persistence_threshold": 0)";
      EXPECT_EQ(sums(whole).gathered, micro_batches * all);
      EXPECT_EQ(sums(whole).reduced, micro_batches * all);
      // Every use gathers anew; the table is the head's too, and the embedding's backward fetches as its forward.
      const std::string none = R"("param_persistence_threshold": 0, "prefetch_bucket_size": 0, "max_reuse_distance": 0)";
      EXPECT_EQ(sums(none).gathered, micro_batches * ((again ? 3 : 2) * 3 * layer + 2 * (kEmbedding + kNorm + 5820)));
      EXPECT_EQ(sums(none).reduced, micro_batches * all);
      // Persistent ones are not gathered; their gradients are reduced all the same.
      EXPECT_EQ(sums(R"("param_persistence_threshold": 1000)").gathered, micro_batches * (3 * (14400 + 28800) + kEmbedding));
      EXPECT_EQ(sums(R"("param_persistence_threshold": 1000)").reduced, micro_batches * all);
      EXPECT_EQ(sums("").gathered, 0) << "no parameter is larger than 1e5";
    }
}

std::int64_t resident(const Schedule& s, Category category) {
  std::int64_t sum = 0;
  for (const Buffer& buffer : s.programs[0].buffers)
    if (buffer.resident && buffer.category == category) sum += buffer.bytes.value;
  return sum;
}

TEST(DeepspeedMemory, PersistentParametersAreWholeTheirGradientsAndStatesAreNot) {
  for (const int dp : {1, 2, 3, 8}) {
    std::int64_t shares = 0, whole = 0, sharded = 0;
    const auto add = [&](std::int64_t elements, int count) {
      const std::int64_t share = (elements + dp - 1) / dp;
      shares += count * share;
      (elements <= 1000 ? whole : sharded) += count * (elements <= 1000 ? dp * share : share);
    };
    for (const std::int64_t elements : {60, 60, 10800, 180, 3600, 60, 60, 60, 14400, 240, 14400, 60}) add(elements, 3);
    for (const std::int64_t elements : {5820, 1920, 60, 60}) add(elements, 1);
    const Schedule s = compiled(deepspeed(R"("param_persistence_threshold": 1000)", dp));
    EXPECT_EQ(resident(s, Category::Param), 2 * (whole + sharded)) << dp;
    EXPECT_EQ(resident(s, Category::GradientShard), 4 * shares);
    EXPECT_EQ(resident(s, Category::Gradient), 0);
    EXPECT_EQ(resident(s, Category::Optimizer), 12 * shares);
  }
}

// The most bytes of a category in buffers that are not resident, by op.
std::int64_t most(const Schedule& s, Category category) {
  const Program& p = s.programs[0];
  const std::vector<Lifetime> lives = lifetimes(s, p);
  std::map<std::uint32_t, std::int64_t> changes;
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    if (p.buffers[b].resident || p.buffers[b].category != category) continue;
    changes[lives[b].first] += p.buffers[b].bytes.value, changes[lives[b].last + 1] -= p.buffers[b].bytes.value;
  }
  std::int64_t now = 0, peak = 0;
  for (const auto& [op, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

TEST(DeepspeedMemory, GatheredParametersAreBoundByTheOptions) {
  const auto gathered = [](const std::string& options) { return most(compiled(deepspeed(options)), Category::GatheredParam) / 2; };
  EXPECT_EQ(gathered(kPlain), 28800) << "one use at a time: up and down";
  EXPECT_EQ(gathered(R"("param_persistence_threshold": 1000)"), 3 * 43200 + kEmbedding) << "all of the model";
  EXPECT_EQ(gathered(R"("param_persistence_threshold": 1000, "max_reuse_distance": 0, "prefetch_bucket_size": 1)"), 28800 + 10800)
      << "and one ahead: qkv of the next layer, or of this one in the backward";
  EXPECT_EQ(gathered(R"("param_persistence_threshold": 1000, "max_reuse_distance": 0, "max_live_parameters": 0)"), 28800);
}

TEST(DeepspeedMemory, GradientsWaitForTheirBucket) {
  const auto waiting = [](const std::string& options) { return most(compiled(deepspeed(options)), Category::Gradient) / 4; };
  EXPECT_EQ(waiting(""), 3 * (kAttention + kMlp) + kEmbedding + kNorm) << "the end of the backward is the first call";
  // The table's gradient is open from the head on, the positions' from the embedding on.
  EXPECT_EQ(waiting(R"("reduce_bucket_size": 1)"), 5820 + kMlp + 60) << "the last one of the half before goes out when the next comes";
}

const char* const kOptions[] = {
    "", R"("param_persistence_threshold": 1000)",
    R"("param_persistence_threshold": 0, "max_reuse_distance": 0, "prefetch_bucket_size": 0, "reduce_bucket_size": 1)",
    R"("param_persistence_threshold": 200, "max_reuse_distance": 0, "prefetch_bucket_size": 20000, "overlap_comm": false)",
    R"("param_persistence_threshold": 0, "max_live_parameters": 30000, "reduce_bucket_size": 20000)",
    R"("param_persistence_threshold": 100, "communicators": 2, "reduce_bucket_size": 10000)"};

TEST(DeepspeedProgram, HasNoProblemInAnyCombination) {
  for (const char* options : kOptions)
    for (const int dp : {1, 3})
      for (const int pp : {1, 2})
        for (const int micro_batches : {1, 3})
          for (const char* order : {"1f1b", "gpipe"})
            for (const bool tied : {false, true})
              for (const std::string& recompute : {std::string("none"), std::string("full"), test::kEveryTwo, std::string("sqrt")}) {
                if (recompute == "sqrt" && pp > 1) continue;
                Case c = deepspeed(options, dp);
                c.layers = 5, c.pp = pp, c.micro_batches = micro_batches, c.order = order, c.tied = tied, c.recompute = recompute;
                const Schedule s =
                    compiled(c, {{"optimizer.clip", dp == 2 ? "1" : "0.5"}, {"precision.reduce", dp == 3 ? "bf16" : "fp32"}});
                ASSERT_EQ(problems_of(s), "") << options << " dp " << dp << " pp " << pp << " m " << micro_batches << order << tied
                                              << recompute;
                EXPECT_EQ(simulated(s).outcome.status, Status::Ok);
              }
}

// But for what DeepSpeed orders without need: compute behind all that stands on the gather lane, what any member of a call waits for, and
// Adam, for whose gradients the host has waited.
TEST(DeepspeedProgram, EveryDependencyThatGuardsABufferIsMissed) {
  for (const char* options : kOptions) {
    Case c = deepspeed(options, 3);
    c.micro_batches = 2;
    const Schedule s = compiled(c);
    std::size_t found = 0;
    for (std::uint32_t op = 0; op < s.ops.size(); ++op)
      for (std::uint32_t d = s.dep_offsets[op]; d < s.dep_offsets[op + 1]; ++d) {
        const bool race = problems_of(without_dependency(s, d)).find("RACE") != std::string::npos;
        const bool behind_gathers = std::holds_alternative<AllGather>(s.ops[s.deps[d].value].body);
        const bool may_be = behind_gathers || s.ops[op].group.valid() || s.ops[op].label.phase == Phase::Update;
        EXPECT_TRUE(race || may_be) << options << ": " << print_op(s, OpId(op));
        found += race ? 1 : 0;
      }
    EXPECT_GT(found, 2u) << options;
  }
}

// The host waits for what lies three calls back, of fetches and of reductions apart.
TEST(DeepspeedProgram, TheHostIsTwoUnfinishedCallsAhead) {
  Case c = deepspeed(kPlain + R"(, "reduce_bucket_size": 29220)");
  c.layers = 4;
  const Schedule s = compiled(c);
  std::vector<OpId> fetches, reductions;  // last ops of calls
  GroupId open;
  std::size_t waits = 0;
  for (std::uint32_t i = 0; i < s.programs[0].op_count; ++i) {
    const Op& op = s.ops[i];
    if (op.label.phase == Phase::Update) break;
    const bool gather = std::holds_alternative<AllGather>(op.body), reduce = std::holds_alternative<ReduceScatter>(op.body);
    std::vector<OpId>& calls = gather ? fetches : reductions;
    if ((gather || reduce) && open.valid() && op.group == open)
      calls.back() = OpId(i);
    else if (gather || reduce)
      calls.emplace_back(i);
    open = op.group;
    const auto* wait = std::get_if<HostWait>(&op.body);
    if (wait == nullptr) continue;
    ++waits;
    const bool of_reduction = std::holds_alternative<ReduceScatter>(s.ops[wait->target.value].body);
    if (of_reduction && wait->target == reductions.back()) continue;  // the end of the backward
    // A fetch's wait stands behind its own call, a reduction's before it.
    EXPECT_EQ(wait->target, of_reduction ? reductions[reductions.size() - 3] : fetches[fetches.size() - 4]);
  }
  EXPECT_EQ(fetches.size(), 2u * (1 + 8 + 1));
  EXPECT_EQ(waits, fetches.size() - 3 + reductions.size() - 3 + 1);
}

// ---- times: every call of gathers takes a, every reduction k, every forward f, every backward b of the G segments ---------------------

struct Times {
  std::int64_t gather = 0, forward = 0, backward = 0, reduce = 0;
};

// A call's time is its first member's.
std::int64_t makespan(Schedule s, const Times& t) {
  GroupId open;
  for (Op& op : s.ops) {
    const bool first = !op.group.valid() || op.group != open;
    open = op.group;
    op.given = Duration(0);
    if (op.label.phase == Phase::Update) continue;
    if (std::holds_alternative<AllGather>(op.body) && first) op.given = Duration(t.gather);
    if (std::holds_alternative<ReduceScatter>(op.body) && first) op.given = Duration(t.reduce);
    if (!std::holds_alternative<Compute>(op.body)) continue;
    if (op.label.phase == Phase::Forward) op.given = Duration(t.forward);
    if (op.label.phase == Phase::Backward) op.given = Duration(t.backward);
  }
  return ns(simulated(s).makespan);
}

// The calls of the reduction: of each the number of the backward that makes its last gradient final. Untied, all layers of ZeroCase's
// model.
std::vector<std::int64_t> calls_of(int layers, std::int64_t bucket) {
  const std::vector<std::int64_t> mlp = {60, 60, 14400, 240, 14400, 60}, attention = {60, 60, 10800, 180, 3600, 60};
  std::vector<std::vector<std::int64_t>> segments = {{60, 60, 5820}};
  for (int layer = 0; layer < layers; ++layer) segments.insert(segments.end(), {mlp, attention});
  segments.push_back({5820, 1920});
  std::vector<std::int64_t> calls;
  std::int64_t waiting = 0, last = 0;
  for (std::size_t j = 0; j < segments.size(); ++j)
    for (const std::int64_t elements : segments[j]) {
      if (waiting + elements > bucket && waiting > 0) calls.push_back(last), waiting = 0;
      waiting += elements, last = static_cast<std::int64_t>(j) + 1;
    }
  calls.push_back(last);
  return calls;
}

TEST(DeepspeedTimes, ClosedForms) {
  test::Random random(11);
  for (int round = 0; round < 100; ++round) {
    const auto draw = [&] { return static_cast<std::int64_t>(1 + random.below(1000)); };
    const auto [a, f, b, k] = std::array{draw(), draw(), draw(), draw()};
    const int layers = 1 + static_cast<int>(random.below(6));
    const std::int64_t g = 2 * layers + 2;
    const auto end = [&](const std::string& options) {
      Case c = deepspeed(options + R"(, "param_persistence_threshold": 0)");
      c.layers = layers;
      c.tied = false;
      return makespan(compiled(c), {a, f, b, k});
    };
    // Gathered anew for every use: 2 G gathers in a row, use j starts behind gather j and use j - 1.
    EXPECT_EQ(end(R"("prefetch_bucket_size": 0, "max_reuse_distance": 0)"),
              std::max({a + g * f + g * b, g * a + f + g * b, (g + 1) * a + g * b, 2 * g * a + b}) + k);
    // Kept: G gathers.
    const std::int64_t forward = std::max(a + g * f, g * a + f);
    EXPECT_EQ(end(R"("prefetch_bucket_size": 0)"), forward + g * b + k);
    // All that is missing goes out with the first use: two calls.
    EXPECT_EQ(end(R"("prefetch_bucket_size": 1000000)"), std::max(a + g * f, 2 * a + (g - 1) * f) + g * b + k);
    // Call n of N starts behind its last backward and behind call n - 1.
    const std::vector<std::int64_t> calls = calls_of(layers, 29220);
    const auto count = static_cast<std::int64_t>(calls.size());
    std::int64_t overlapped = 0;
    for (std::int64_t n = 0; n < count; ++n) overlapped = std::max(overlapped, calls[static_cast<std::size_t>(n)] * b + (count - n) * k);
    const std::string buckets = R"("prefetch_bucket_size": 0, "reduce_bucket_size": 29220)";
    EXPECT_EQ(end(buckets), forward + overlapped);
    EXPECT_EQ(end(buckets + R"(, "overlap_comm": false)"), forward + g * b + count * k);
  }
}

// One process group: what is issued later runs later, on either lane.
TEST(DeepspeedTimes, GathersAndReductionsTakeTurns) {
  Case c =
      deepspeed(R"("param_persistence_threshold": 0, "prefetch_bucket_size": 0, "max_reuse_distance": 0, "reduce_bucket_size": 29220)");
  c.layers = 1;
  c.tied = false;
  // Six gathers of 1 end at 1 ... 6, forwards of 2 at 3, 5, 7, 9, backwards of 6 of head and mlp at 15 and 21. The first call of reductions
  // (head, mlp's norm and up) is issued before the gather of attn: [21,25], [25,26]. attn [26,32], embed [32,38]; the second call [32,36],
  // the embedding's [38,42].
  EXPECT_EQ(makespan(compiled(c), {1, 2, 6, 4}), 42);
  // [21,29], [29,30]; attn [30,36], embed [36,42]; [36,44], [44,52].
  EXPECT_EQ(makespan(compiled(c), {1, 2, 6, 8}), 52);
  // With a communicator each, attn's gather ends at 7 and computes go on: 33; the calls [21,29], [29,37], [37,45].
  c.zero += R"(, "communicators": 2)";
  EXPECT_EQ(makespan(compiled(c), {1, 2, 6, 8}), 45);
}

}  // namespace
}  // namespace steptwin
