// Which process of a run this one is, by the variables that launchers set. The first launcher whose variables are there counts:
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; TORCHELASTIC_USE_AGENT_STORE, _RUN_ID, _RESTART_COUNT
//   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   MPICH      PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS (Intel MPI too)
//   MVAPICH    MV2_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   PALS       PALS_RANKID, PMI_SIZE, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE
//   Slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID: only in a step of srun with several tasks. In a batch or interactive step
//   the
//              variables describe the job, but one process runs
// Where process 0 serves the store: MASTER_ADDR and MASTER_PORT, else
//   the host   of Slurm the first of SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, else SLURM_LAUNCH_NODE_IPADDR; of a run on one host, where
//   the
//              launcher says so, 127.0.0.1
//   the port   of Slurm 10000 + SLURM_JOB_ID % 50000, else 29500
// An empty variable counts as unset.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace steptwin {

struct Launch {
  std::uint32_t rank = 0, world = 1;
  std::uint32_t local_rank = 0;  // on its host; the rank where the launcher does not say
  std::string host;              // of the store
  std::uint16_t port = 0;
  bool agent_store = false;  // the launcher's agent serves the store: every process, 0 too, is a client
  std::string prefix;        // of all keys of this attempt of the run: an agent's store outlives an attempt
  std::string launcher;      // "torchrun", ...; empty: none
  bool alone() const { return world == 1; }
  bool serves_store() const { return rank == 0 && !agent_store; }
};

// Throws InputError (LAUNCH) naming the variable: a number that is none, a rank beyond its world, a part that is missing.
Launch launch_from(const std::function<std::string(const char* name)>& variable);

// A process runs one rank of the schedule, so there must be as many: else InputError (LAUNCH).
void require_one_process_per_rank(const Launch& launch, std::uint32_t ranks);

}  // namespace steptwin
