// Host memory and disk belong to a node: the ranks on it share them (DESIGN 3).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/cost/cost_models.h"
#include "sim/simulate.h"
#include "tests/support/verdict.h"

namespace steptwin {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// Every issue costs 1 us; ops state their durations.
class HostCosts : public CostModel {
 public:
  std::string name() const override { return "test"; }
  Cost compute(const Schedule&, const Program&, const Op&) const override { return {}; }
  Cost copy(const Schedule&, const Program&, OpId) const override { return {}; }
  Cost communicate(const Schedule&, const Program&, const Op&, const CommShape&) const override { return {}; }
  Launch launch(const Schedule&, const Op&) const override { return {Duration(1000), Duration(1000)}; }
};

Machine machine_of(int devices_per_node, std::int64_t pinned, std::int64_t pageable = 0) {
  Machine machine;
  machine.devices_per_node = devices_per_node;
  machine.host.pinned_memory = Bytes(pinned);
  machine.host.pageable_memory = Bytes(pageable);
  return machine;
}

Trace run(const std::string& text, const Machine& machine, FoldChoice fold = FoldChoice::Auto, std::uint32_t steps = 1) {
  SimulateOptions options;
  options.fold = fold;
  options.steps = steps;
  return simulate(parsed(text), HostCosts(), &machine, options);
}

// Four ranks that each hold 2 GiB resident and fill 3 GiB more in op 2 of the program, until op 3.
std::string offloading(const std::string& space) {
  return fmt::format(R"(mesh dp 4
program p ranks all
  lane d copy_down
  buffer a 3GiB activation
  buffer r {0} 2GiB optimizer resident
  buffer h {0} 3GiB activation
  0 compute write a lane d time 1us
  1 compute read r lane d time 1us
  2 copy read a write h lane d time 5us
  3 compute read h lane d time 1us
  4 compute read r lane d time 1us
)",
                     space);
}

// Two ranks of a device: 2 + 3 GiB each of "device", and each one's own 3 GiB of `a` beside them.
TEST(SharedMemory, RanksThatShareADeviceShareItsMemory) {
  const std::string text = offloading("device");
  Machine machine = machine_of(8, 0);
  machine.device.memory = Bytes(16 * kGiB);
  EXPECT_EQ(run(text, machine).outcome.status, Status::Ok) << "a device each";
  machine.ranks_per_device = 2;
  EXPECT_EQ(run(text, machine).outcome.status, Status::Ok);
  machine.device.memory = Bytes(16 * kGiB - 1);
  for (FoldChoice fold : {FoldChoice::Auto, FoldChoice::Off}) {
    const Trace trace = run(text, machine, fold);
    EXPECT_EQ(trace.outcome.status, Status::OutOfMemory);
    EXPECT_EQ(trace.outcome.rank, RankId(1));
    EXPECT_EQ(trace.outcome.op, OpId(2));
    EXPECT_THAT(trace.outcome.text, HasSubstr("in the memory of device 0, which 2 ranks share"));
  }
}

TEST(SharedMemory, RanksOfANodeShareItsPinnedMemory) {
  const std::string text = offloading("pinned");
  EXPECT_EQ(run(text, machine_of(2, 10 * kGiB)).outcome.status, Status::Ok);
  for (FoldChoice fold : {FoldChoice::Auto, FoldChoice::Off}) {
    const Trace trace = run(text, machine_of(2, 10 * kGiB - 1), fold);
    EXPECT_EQ(trace.outcome.status, Status::OutOfMemory);
    EXPECT_EQ(trace.outcome.rank, RankId(1));  // rank 0 comes first and fits
    EXPECT_EQ(trace.outcome.op, OpId(2));
    EXPECT_EQ(trace.outcome.space, Space::Pinned);
    EXPECT_EQ(trace.outcome.requested.value, 3 * kGiB);
    EXPECT_EQ(trace.outcome.in_use.value, 7 * kGiB);
    EXPECT_EQ(trace.outcome.text, "out of memory on rank 1 in the pinned memory of node 0 at 0.002 ms: needs 10.0 GiB, capacity 10.0 GiB");
    EXPECT_THAT(trace.outcome.details, Contains(HasSubstr("2 copy read a write h")));
    EXPECT_THAT(trace.outcome.details, Contains(HasSubstr("activation 6.0 GiB, optimizer 4.0 GiB")));
  }
  EXPECT_EQ(run(text, machine_of(1, 5 * kGiB)).outcome.status, Status::Ok);
  EXPECT_EQ(run(text, machine_of(4, 20 * kGiB)).outcome.status, Status::Ok);
  EXPECT_EQ(run(text, machine_of(4, 20 * kGiB - 1)).outcome.rank, RankId(3));
}

TEST(SharedMemory, PageableAndDiskAreOthers) {
  const std::string text = offloading("pageable");
  EXPECT_EQ(run(text, machine_of(2, 1, 10 * kGiB)).outcome.status, Status::Ok);
  EXPECT_THAT(run(text, machine_of(2, 1, 9 * kGiB)).outcome.text, HasSubstr("in the pageable memory of node 0"));
  Machine machine = machine_of(2, 1, 1);
  machine.disk = Disk{{1e9}, {1e9}, Bytes(9 * kGiB)};
  EXPECT_THAT(run(offloading("storage"), machine).outcome.text, HasSubstr("in the disk of node 0"));
}

TEST(SharedMemory, ResidentBuffersAlone) {
  const Trace trace = run(offloading("pinned"), machine_of(2, 3 * kGiB));
  EXPECT_EQ(trace.outcome.text, "out of memory on rank 1 in the pinned memory of node 0 before the first op: needs 4.0 GiB, capacity 3.0 GiB");
}

// Ranks that hold the memory one after the other need it once: the sum is taken on the common clock.
TEST(SharedMemory, OneAfterTheOther) {
  const std::string text = R"(mesh pp 2
comm c axes pp
program p ranks 0
  lane n network
  buffer h pinned 3GiB
  0 compute write h lane n time 1us
  1 compute read h lane n time 1us
  2 send on c to 1 lane n time 1us
program q ranks 1
  lane n network
  buffer h pinned 3GiB
  0 recv on c from 0 lane n time 1us
  1 host_wait for 0
  2 compute write h lane n time 1us
  3 compute read h lane n time 1us
)";
  EXPECT_EQ(run(text, machine_of(2, 3 * kGiB)).outcome.status, Status::Ok);
  const std::string together = text.substr(0, text.find("  1 host_wait")) + "  1 compute write h lane n time 1us\n  2 compute read h lane n time 1us\n";
  EXPECT_EQ(run(together, machine_of(2, 3 * kGiB)).outcome.status, Status::OutOfMemory);
  EXPECT_EQ(run(text, machine_of(2, 3 * kGiB), FoldChoice::Auto, 3).outcome.status, Status::OutOfMemory);  // rank 0 is ahead by a step
}

// The device runs out first, at op 0.
TEST(SharedMemory, TheEarliestShortageIsTold) {
  Machine machine = machine_of(2, 9 * kGiB);
  machine.device.memory = Bytes(2 * kGiB);
  EXPECT_EQ(run(offloading("pinned"), machine).outcome.space, Space::Device);
}

}  // namespace
}  // namespace steptwin
