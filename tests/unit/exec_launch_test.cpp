// Which process am I: every launcher's variables, their precedence, and what makes no sense (specs/execution.md 14.1).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "exec/launch.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch_with(const Variables& variables) {
  return launch_from([&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::string() : at->second;
  });
}

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

const Variables kTorchrun{{"RANK", "3"},         {"WORLD_SIZE", "8"},    {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "7001"}};
const Variables kOpenMpi{
    {"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "5"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
const Variables kMpich{{"PMI_RANK", "1"}, {"PMI_SIZE", "6"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "3"}};
const Variables kMvapich{
    {"MV2_COMM_WORLD_RANK", "6"}, {"MV2_COMM_WORLD_SIZE", "7"}, {"MV2_COMM_WORLD_LOCAL_RANK", "0"}, {"MV2_COMM_WORLD_LOCAL_SIZE", "1"}};
const Variables kPals{{"PALS_RANKID", "4"}, {"PMI_SIZE", "9"}, {"PALS_LOCAL_RANKID", "2"}};
const Variables kSlurm{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "9"},      {"SLURM_STEP_NUM_TASKS", "16"},
                       {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "123456"}, {"SLURM_JOB_NODELIST", "tux[07-09,12],big1"}};
const Variables kAddress{{"MASTER_ADDR", "n1"}};

void expect_place(const Launch& launch, const char* launcher, std::uint32_t rank, std::uint32_t world, std::uint32_t local_rank) {
  EXPECT_EQ(launch.launcher, launcher);
  EXPECT_EQ(launch.rank, rank) << launcher;
  EXPECT_EQ(launch.world, world) << launcher;
  EXPECT_EQ(launch.local_rank, local_rank) << launcher;
}

void expect_refused(const Variables& variables, const std::string& part, const std::string& help_part = "") {
  try {
    launch_with(variables);
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const InputError& error) {
    ASSERT_EQ(error.problems().size(), 1u);
    EXPECT_EQ(error.problems()[0].code, "LAUNCH");
    EXPECT_THAT(error.problems()[0].text, testing::HasSubstr(part));
    EXPECT_THAT(error.problems()[0].help, testing::HasSubstr(help_part));
    EXPECT_FALSE(error.problems()[0].help.empty());
  }
}

TEST(Launch, without_a_launcher_one_process_runs_all) {
  const Launch launch = launch_with({});
  EXPECT_TRUE(launch.alone());
  EXPECT_EQ(launch.launcher, "");
}

TEST(Launch, each_launcher_s_variables_are_read) {
  expect_place(launch_with(kTorchrun), "torchrun", 3, 8, 1);
  expect_place(launch_with(kOpenMpi + kAddress), "Open MPI", 2, 5, 0);
  expect_place(launch_with(kMpich + kAddress), "MPICH", 1, 6, 1);
  expect_place(launch_with(kMvapich + kAddress), "MVAPICH", 6, 7, 0);
  expect_place(launch_with(kPals + kAddress), "PALS", 4, 9, 2);
  expect_place(launch_with(kSlurm), "Slurm", 9, 16, 1);
}

TEST(Launch, the_first_of_several_launchers_counts) {
  Variables all = kSlurm + kAddress;
  const std::vector<std::pair<const char*, Variables>> rows{
      {"PALS", kPals}, {"MVAPICH", kMvapich}, {"MPICH", kMpich}, {"Open MPI", kOpenMpi}, {"torchrun", kTorchrun}};
  EXPECT_EQ(launch_with(all).launcher, "Slurm");
  for (const auto& [launcher, variables] : rows) {
    all = all + variables;
    EXPECT_EQ(launch_with(all).launcher, launcher);
  }
}

TEST(Launch, where_the_store_is) {
  EXPECT_EQ(launch_with(kTorchrun).host, "n1");
  EXPECT_EQ(launch_with(kTorchrun).port, 7001);
  EXPECT_EQ(launch_with(kOpenMpi + kAddress).port, 29500);
  EXPECT_EQ(launch_with(kSlurm).host, "tux07");
  EXPECT_EQ(launch_with(kSlurm).port, 10000 + 123456 % 50000);
  EXPECT_EQ(launch_with(kSlurm + Variables{{"MASTER_ADDR", "here"}, {"MASTER_PORT", "99"}}).host, "here");
  EXPECT_EQ(launch_with(kSlurm + Variables{{"MASTER_PORT", "99"}}).port, 99);
  for (const auto& [list, host] : {std::pair{"a1", "a1"}, {"a1,b2", "a1"}, {"n[3,5]-ib,m", "n3-ib"}, {"r[1-2]n[04-05]", "r1n04"}})
    EXPECT_EQ(launch_with(kSlurm + Variables{{"SLURM_JOB_NODELIST", list}}).host, host) << list;
  EXPECT_EQ(launch_with(kSlurm + Variables{{"SLURM_STEP_NODELIST", "step1"}}).host, "step1");
  EXPECT_EQ(launch_with(kSlurm + Variables{{"SLURM_JOB_NODELIST", ""}, {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"}}).host, "10.0.0.7");
}

TEST(Launch, on_one_host_the_address_may_be_missing) {
  const Variables one{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(launch_with(one).host, "127.0.0.1");
  expect_refused(kOpenMpi, "process 2 of 5 (Open MPI) does not know where process 0 runs: MASTER_ADDR is not set", "set MASTER_ADDR");
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "7001"}}, "MASTER_ADDR is not set", "127.0.0.1");
}

TEST(Launch, the_agent_of_torchrun_holds_the_store) {
  const Variables agent{
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}, {"TORCHELASTIC_RUN_ID", "r7"}, {"RANK", "0"}};
  const Launch launch = launch_with(kTorchrun + agent);
  EXPECT_TRUE(launch.agent_store);
  EXPECT_FALSE(launch.serves_store());
  EXPECT_EQ(launch.prefix, "steptwin/r7/2/") << "an attempt must not see the keys of the one before";
  EXPECT_TRUE(launch_with(kTorchrun + Variables{{"RANK", "0"}}).serves_store());
  EXPECT_FALSE(launch_with(kTorchrun).serves_store());
  EXPECT_FALSE(launch_with(kTorchrun + agent + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "False"}}).agent_store);
}

// Inside sbatch without srun the variables describe the job, but one process runs.
TEST(Launch, slurm_counts_in_a_step_of_several_tasks_only) {
  for (const char* step : {"4294967291", "4294967290", ""})
    EXPECT_TRUE(launch_with(kSlurm + Variables{{"SLURM_STEP_ID", step}}).alone()) << step;
  EXPECT_TRUE(launch_with(kSlurm + Variables{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}).alone());
  EXPECT_TRUE(launch_with(kSlurm + Variables{{"SLURM_STEP_NUM_TASKS", ""}}).alone());
}

TEST(Launch, one_process_of_a_launcher_runs_all_ranks_and_needs_no_address) {
  EXPECT_TRUE(launch_with({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).alone());
  EXPECT_TRUE(launch_with({{"WORLD_SIZE", "1"}}).alone());
}

TEST(Launch, what_is_missing_or_makes_no_sense_is_refused) {
  expect_refused({{"WORLD_SIZE", "4"}}, "WORLD_SIZE is set, but RANK is not (torchrun)");
  expect_refused({{"RANK", "1"}}, "RANK is set, but WORLD_SIZE is not (torchrun)");
  expect_refused({{"PALS_RANKID", "1"}}, "PALS_RANKID is set, but PMI_SIZE is not (PALS)");
  expect_refused(kTorchrun + Variables{{"RANK", "8"}}, "RANK is 8, but WORLD_SIZE is 8: ranks count from 0");
  expect_refused(kTorchrun + Variables{{"LOCAL_RANK", "2"}}, "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2");
  expect_refused(kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "9"}}, "LOCAL_WORLD_SIZE is 9, more than WORLD_SIZE = 8");
  for (const char* word : {"x", "-1", "1.5", " 1", "99999999999"})
    expect_refused(kTorchrun + Variables{{"RANK", word}},
                   std::string("the environment variable RANK is `") + word + "`, which is no whole number");
  for (const char* port : {"0", "65536"}) expect_refused(kTorchrun + Variables{{"MASTER_PORT", port}}, "ports are 1 to 65535", "free port");
}

TEST(Launch, there_is_one_process_per_rank) {
  const Launch launch = launch_with(kTorchrun);
  EXPECT_NO_THROW(require_one_process_per_rank(launch, 8));
  EXPECT_NO_THROW(require_one_process_per_rank({}, 8));
  try {
    require_one_process_per_rank(launch, 4);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.problems()[0].text, "torchrun started 8 processes, but the schedule has 4 ranks: each process runs one rank");
    EXPECT_EQ(error.problems()[0].help, "start 4 processes, or one that runs all ranks");
  }
}

}  // namespace
}  // namespace steptwin
