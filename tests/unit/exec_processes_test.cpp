// Several processes of one run: the part that one drives, how they find each other, how a failure or a death of one becomes known to all,
// their clocks, and the data between them. (That a run of theirs is like one process' is what the conformance suite asks of its row
// "processes".)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "exec/comm/remote_transfer.h"
#include "exec/present.h"
#include "schedule/ir/text.h"
#include "tests/support/process_run.h"
#include "traces/check_trace.h"

namespace steptwin {
namespace {

using std::chrono::milliseconds;
using test::kTestLimits;
using test::launch_of;
using test::MemoryStore;
using test::SharedMap;
using testing::HasSubstr;

constexpr const char* kRing = R"(mesh pp 3
comm ring axes pp
comm world axes pp
layout l
  tensor t fp32 3 at 0
program a ranks all
  lane run compute
  lane net network
  lane back network
  buffer x 12B
  buffer y 12B
  buffer g gradient layout l resident
  0 compute F one write x lane run
  1 send on ring to +1 dtype fp32 read x lane net after 0
  2 recv on ring from -1 dtype fp32 write y lane back
  3 compute F add read y write g lane run after 2
  4 all_reduce on world dtype fp32 update g lane net after 3
)";

// ---- present ranks ---------------------------------------------------------------------------------------------------------
TEST(Present, a_part_of_a_matching_holds_its_ranks_alone) {
  const Schedule schedule = parse_schedule(kRing, "t");
  const Matching whole = match(schedule, Folding::None);
  const Matching part = present_part(whole, {RankId(1)});
  ASSERT_EQ(part.ranks.size(), 1u);
  EXPECT_EQ(part.ranks[0].rank, RankId(1));
  EXPECT_EQ(part.stand_in, (std::vector<std::uint32_t>{kElsewhere, 0, kElsewhere}));
  ASSERT_EQ(part.instances.size(), whole.instances.size());
  ASSERT_EQ(part.instances[0].members.size(), 1u);
  EXPECT_EQ(part.instances[0].members[0].rank, 0u);
  const auto& channels = part.tables[part.ranks[0].tables].channels;
  for (std::size_t c = 0; c < channels.size(); ++c)
    EXPECT_EQ(part.ranks[0].counterparts[c].rank, channels[c].collective ? 0 : kElsewhere) << c;
}

TEST(Present, all_ranks_together_are_the_whole_matching) {
  const Schedule schedule = parse_schedule(kRing, "t");
  const Matching whole = match(schedule, Folding::None), part = present_part(whole, {RankId(0), RankId(1), RankId(2)});
  ASSERT_EQ(part.ranks.size(), 3u);
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t c = 0; c < whole.ranks[r].counterparts.size(); ++c)
      EXPECT_EQ(part.ranks[r].counterparts[c].rank, whole.ranks[r].counterparts[c].rank);
  EXPECT_EQ(part.stand_in, whole.stand_in);
}

// ---- runs ------------------------------------------------------------------------------------------------------------------
ExecuteOptions options_of(std::uint32_t steps = 1) {
  ExecuteOptions options;
  options.steps = steps;
  options.keep_gradients = true;
  return options;
}

TEST(Processes, results_and_trace_are_those_of_one_process) {
  const Schedule schedule = parse_schedule(kRing, "t");
  const ExecutionResult one = execute_on_cpu(schedule, options_of(2)), several = test::run_as_processes(schedule, options_of(2));
  EXPECT_EQ(several.gradients, one.gradients);
  EXPECT_EQ(several.allocated, one.allocated);
  EXPECT_EQ(several.trace.spans.size(), 3u * 5 * 2);
  EXPECT_EQ(several.trace.op_count, one.trace.op_count);
  EXPECT_EQ(several.trace.simulated, one.trace.simulated);
  EXPECT_EQ(several.trace.stand_in, one.trace.stand_in);
  EXPECT_EQ(several.trace.peaks.size(), one.trace.peaks.size());
  EXPECT_EQ(several.trace.breakdowns.size(), 3u);
  ASSERT_EQ(several.processes.size(), 3u);
  EXPECT_EQ(several.processes[2].rank, 2u);
  EXPECT_EQ(several.processes[2].clock_uncertainty, 0) << "one host has one clock";
}

TEST(Processes, nothing_of_a_run_s_data_is_left_in_the_store) {
  const auto map = std::make_shared<SharedMap>();
  test::run_processes(parse_schedule(kRing, "t"), options_of(3), map);
  for (const auto& [key, value] : map->values) {
    EXPECT_THAT(key, testing::Not(testing::StartsWith("data/")));
    EXPECT_THAT(key, testing::Not(testing::StartsWith("part/")));
  }
}

// Process 1 as if on a host of its own, whose clock is read up to 0.3 ms wrong.
class FarStore final : public MemoryStore {
 public:
  using MemoryStore::MemoryStore;
  void set(const std::string& key, std::string_view value) override {
    MemoryStore::set(key, key == "joined/1" ? "far\x1f"
                                              "another-boot ns 1\x1f"
                                              "1\x1f"
                                              "a test"
                                            : value);
  }
  std::optional<std::string> find(const std::string& key) override {
    std::optional<std::string> value = MemoryStore::find(key);
    if (value && key.starts_with("clock/1/begin/answer")) value = std::to_string(std::stoll(*value) + 300'000);
    if (value && key.starts_with("clock/1/end/answer")) value = std::to_string(std::stoll(*value) - 300'000);
    return value;
  }
};

TEST(Processes, times_of_a_clock_that_was_read_wrong_obey_the_order_all_the_same) {
  const Schedule schedule = parse_schedule(kRing, "t");
  const auto map = std::make_shared<SharedMap>();
  const auto ends = test::run_processes(schedule, options_of(20), [&](std::uint32_t process) -> std::unique_ptr<KvStore> {
    if (process == 1) return std::make_unique<FarStore>(map);
    return std::make_unique<MemoryStore>(map);
  });
  const ExecutionResult& result = ends[0].result;
  ASSERT_EQ(result.trace.outcome.status, Status::Ok);
  for (const Diagnostic& d : check_trace(schedule, result.trace, 20)) ADD_FAILURE() << d.code << " " << d.text;
  EXPECT_EQ(result.processes[1].host, "far");
  EXPECT_GT(result.processes[1].clock_uncertainty, 0);
  EXPECT_NEAR(static_cast<double>(result.processes[1].clock_offset), 300e3, static_cast<double>(result.processes[1].clock_uncertainty));
  EXPECT_EQ(result.processes[2].clock_uncertainty, 0);
}

TEST(Processes, all_report_the_failure_that_came_first) {
  ExecuteOptions options = options_of();
  options.before_op = [](RankId rank, OpId op, std::uint32_t) {
    if (rank == RankId(1) && op == OpId(3)) throw EnvironmentError(EnvironmentError::Kind::File, "boom", "a remedy");
  };
  const auto ends = test::run_processes(parse_schedule(kRing, "t"), options, std::make_shared<SharedMap>());
  for (std::size_t r = 0; r < ends.size(); ++r) {
    ASSERT_TRUE(ends[r].failure) << r;
    try {
      std::rethrow_exception(ends[r].failure);
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 failed at op `3 compute F add"));
      EXPECT_EQ(std::string(error.what()).starts_with("process 1 failed: "), r != 1) << error.what();
      EXPECT_EQ(error.kind(), EnvironmentError::Kind::File);
      EXPECT_EQ(error.help(), "a remedy");
    }
  }
}

TEST(Processes, a_hang_is_found_and_ends_all) {
  const Schedule schedule = parse_schedule(
      "mesh pp 2\ncomm c axes pp\nprogram a ranks all\n  lane net network\n  0 send on c to +1 bytes 4B\n  1 recv on c from -1 bytes 4B\n",
      "t");
  const auto ends = test::run_processes(schedule, options_of(), std::make_shared<SharedMap>());
  for (const auto& end : ends) EXPECT_EQ(end.result.trace.outcome.status, Status::Deadlock);
}

// ---- the group -------------------------------------------------------------------------------------------------------------
struct Group {
  explicit Group(std::uint32_t world, ProcessGroup::Limits limits = kTestLimits) : map(std::make_shared<SharedMap>()) {
    for (std::uint32_t r = 0; r < world; ++r)
      members.push_back(std::make_unique<ProcessGroup>(launch_of(r, world), std::make_unique<MemoryStore>(map), limits));
  }
  ~Group() {
    while (!members.empty()) members.pop_back();  // who serves the store goes last
  }
  // what(process) at the same time in each; what they throw, by process.
  std::vector<std::string> each(const std::function<void(ProcessGroup&)>& what) {
    std::vector<std::string> thrown(members.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < members.size(); ++r) {
      threads.emplace_back([&, r] {
        try {
          what(*members[r]);
        } catch (const std::exception& error) {
          thrown[r] = error.what();
          members[r]->fail(std::current_exception());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return thrown;
  }
  void join() {
    EXPECT_THAT(each([](ProcessGroup& g) { g.join("x"); }), testing::Each(""));
  }
  std::shared_ptr<SharedMap> map;
  std::vector<std::unique_ptr<ProcessGroup>> members;
};

std::string thrown_within(ProcessGroup& group, milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    try {
      group.check();
    } catch (const std::exception& error) {
      return error.what();
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return "nothing within the limit";
}

TEST(ProcessGroup, who_does_not_come_is_named) {
  Group group(3, {milliseconds(30), milliseconds(1000), milliseconds(2), milliseconds(20)});
  group.members.pop_back();
  for (const std::string& text : group.each([](ProcessGroup& g) { g.join("x"); }))
    EXPECT_THAT(text, HasSubstr("of 3 processes these have not joined within 30 ms: 2"));
}

TEST(ProcessGroup, processes_that_run_different_things_are_refused) {
  Group group(2);
  const auto thrown = group.each([](ProcessGroup& g) {
    g.join(g.leads() ? "2 steps" : "3 steps");
    g.barrier("b");
  });
  EXPECT_THAT(thrown[1],
              HasSubstr("process 1 was started to run something else than process 0:\n  process 0: 2 steps\n  process 1: 3 steps"));
  EXPECT_THAT(thrown[0], HasSubstr("process 1 failed: process 1 was started"));
}

TEST(ProcessGroup, a_second_run_at_the_same_store_is_refused) {
  Group group(2);
  group.join();
  ProcessGroup intruder(launch_of(1, 2), std::make_unique<MemoryStore>(group.map), kTestLimits);
  EXPECT_THROW(intruder.join("x"), EnvironmentError);
  EXPECT_NO_THROW(group.members[0]->check());
}

// Its beats stop, but it never took leave.
TEST(ProcessGroup, a_process_that_falls_silent_is_missed_by_all) {
  Group group(3, {milliseconds(5000), milliseconds(80), milliseconds(5), milliseconds(20)});
  group.join();
  group.members[2].reset();
  MemoryStore(group.map).set("beat/2", "999999 0 0 0 0\nrank 2 stands here");  // as if it had not gone orderly
  for (int r : {0, 1}) {
    const std::string text = thrown_within(*group.members[static_cast<std::size_t>(r)], milliseconds(5000));
    EXPECT_THAT(text, HasSubstr("process 2 failed: nothing was heard of it for 80 ms"));
    EXPECT_THAT(text, HasSubstr("\n  rank 2 stands here"));
  }
}

TEST(ProcessGroup, who_has_left_is_not_missed) {
  Group group(2, {milliseconds(5000), milliseconds(30), milliseconds(5)});
  group.join();
  group.members[1].reset();
  EXPECT_EQ(thrown_within(*group.members[0], milliseconds(100)), "nothing within the limit");
}

TEST(ProcessGroup, a_store_that_is_lost_is_a_failure_of_all) {
  Group group(2);
  group.join();
  group.map->broken = true;
  for (const auto& member : group.members)
    EXPECT_THAT(thrown_within(*member, milliseconds(5000)), HasSubstr("can no longer reach the store: connection reset"));
}

TEST(ProcessGroup, a_stop_of_one_ends_the_waiting_of_all) {
  Group group(3);
  group.join();
  std::atomic<bool> stop{true};
  std::atomic<int> passed{0};
  group.each([&](ProcessGroup& g) {  // the others wait for rank 1, which does not come
    const bool got = g.launch().rank == 1 ? g.await("never/set", &stop).has_value() : g.barrier("never");
    passed += got ? 1 : 0;
  });
  for (const auto& member : group.members) EXPECT_EQ(member->ending(), ProcessGroup::Ending::Interrupted);
  EXPECT_EQ(passed, 0);
}

TEST(ProcessGroup, values_of_any_size_are_handed_over_whole_and_leave_nothing) {
  Group group(2);
  group.join();
  std::string value(2 * KvStore::kMostBytes + 17, 'a');
  for (std::size_t i = 0; i < value.size(); i += 1000) value[i] = static_cast<char>(i);
  std::string got;
  group.each([&](ProcessGroup& g) {
    if (g.leads()) {
      got = g.collect("v").value();
    } else {
      g.publish("v", value);
    }
  });
  EXPECT_EQ(got, value);
  for (const auto& entry : group.map->values) EXPECT_FALSE(entry.first.starts_with("v")) << entry.first;
}

// ---- clocks ----------------------------------------------------------------------------------------------------------------
TEST(SharedClock, a_foreign_clock_is_read_to_within_half_the_round_trip) {
  const auto map = std::make_shared<SharedMap>();
  MemoryStore lead(map), other(map);
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  constexpr std::int64_t kAhead = 5'000'000'000;
  const auto look = [] {};
  std::thread answering([&] {
    answer_clock(
        lead, "c", [&] { return now() + kAhead; }, look);
  });
  const ClockReading reading = ask_clock(other, "c", now, look);
  answering.join();
  EXPECT_GT(reading.uncertainty, 0);
  EXPECT_LT(reading.uncertainty, 1'000'000'000);
  EXPECT_LE(std::abs(reading.offset - kAhead), reading.uncertainty);
  EXPECT_TRUE(map->values.empty());
}

TEST(SharedClock, between_two_readings_the_offset_drifts_evenly) {
  const ClockMap map{{1000, 50, 3}, {3000, 70, 2}};
  EXPECT_EQ(map.to_lead(1000), 1050);
  EXPECT_EQ(map.to_lead(2000), 2060);
  EXPECT_EQ(map.to_lead(3000), 3070);
  EXPECT_EQ(map.uncertainty(), 3);
  const ClockMap once{{1000, 50, 3}, {1000, 50, 3}};
  EXPECT_EQ(once.to_lead(9000), 9050);
}

// ---- data ------------------------------------------------------------------------------------------------------------------
struct Floats {
  explicit Floats(std::vector<float> v) : values(std::move(v)) {}
  FlatView view() {
    return FlatView({{reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size() * sizeof(float))}});
  }
  std::vector<float> values;
};

TEST(RemoteTransfer, a_message_ends_for_its_sender_when_it_has_been_received) {
  MemoryStore store(std::make_shared<SharedMap>());
  const OpBody body = Send{CommId(0), DType::Fp32, Bytes(8), {}};
  Floats in({1, 2}), out({0, 0});
  RemoteTransfer receiver(store, "k", body, 2, {{1, {{}, out.view()}}}, RemoteTransfer::Work::Move);
  EXPECT_FALSE(receiver.try_finish()) << "nothing was sent";
  RemoteTransfer sender(store, "k", body, 2, {{0, {in.view(), {}}}}, RemoteTransfer::Work::Move);
  EXPECT_FALSE(sender.try_finish()) << "a rendezvous";
  EXPECT_TRUE(receiver.try_finish());
  EXPECT_TRUE(sender.try_finish());
  EXPECT_EQ(out.values, (std::vector<float>{1, 2}));
}

// 0.1f + 0.2f + 0.3f depends on the order.
TEST(RemoteTransfer, a_reduction_adds_in_member_order_wherever_members_run) {
  const OpBody body = AllReduce{CommId(0), DType::Fp32, Bytes(4), AllReduce::Reduction::Sum};
  const std::vector<float> values{1e8f, 1.0f, -1e8f};
  std::vector<Floats> whole, split;
  for (const float v : values) whole.emplace_back(std::vector<float>{v}), split.emplace_back(std::vector<float>{v});
  std::vector<MemberMemory> members;
  for (Floats& f : whole) members.push_back({f.view(), f.view()});
  communicate(body, members);
  MemoryStore store(std::make_shared<SharedMap>());
  const auto at = [&](std::uint32_t m) { return RemoteTransfer::Member{m, {split[m].view(), split[m].view()}}; };
  RemoteTransfer one(store, "k", body, 3, {at(0), at(2)}, RemoteTransfer::Work::Move),
      other(store, "k", body, 3, {at(1)}, RemoteTransfer::Work::Move);
  EXPECT_TRUE(other.try_finish());
  EXPECT_TRUE(one.try_finish());
  for (std::size_t m = 0; m < 3; ++m) EXPECT_EQ(split[m].values, whole[m].values) << m;
}

TEST(RemoteTransfer, large_data_goes_in_pieces) {
  const auto map = std::make_shared<SharedMap>();
  MemoryStore store(map);
  std::vector<float> values(KvStore::kMostBytes / 2 + 3);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Floats in(values), out(std::vector<float>(values.size()));
  const OpBody body = Send{CommId(0), DType::Fp32, Bytes(static_cast<std::int64_t>(values.size() * 4)), {}};
  RemoteTransfer sender(store, "k", body, 2, {{0, {in.view(), {}}}}, RemoteTransfer::Work::Move);
  EXPECT_EQ(map->values.size(), 4u) << "three pieces and the size";
  RemoteTransfer receiver(store, "k", body, 2, {{1, {{}, out.view()}}}, RemoteTransfer::Work::Move);
  EXPECT_TRUE(receiver.try_finish());
  EXPECT_EQ(out.values, values);
  EXPECT_TRUE(map->values.empty());
}

TEST(RemoteTransfer, too_small_memory_is_refused_by_whoever_has_it) {
  MemoryStore store(std::make_shared<SharedMap>());
  Floats small({1});
  const OpBody body = Send{CommId(0), DType::Fp32, Bytes(8), {}};
  EXPECT_THROW(RemoteTransfer(store, "k", body, 2, {{0, {small.view(), {}}}}, RemoteTransfer::Work::Move), EnvironmentError);
}

}  // namespace
}  // namespace steptwin
