#include "exec/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "schedule/base/error.h"

namespace steptwin {
namespace {

using Variables = std::function<std::string(const char* name)>;

constexpr const char* kRemedy =
    "start all processes with torchrun, mpirun or srun, or unset its variables for one process that runs all ranks";

struct LauncherRow {
  const char *name, *rank, *world, *local_rank, *local_world;
};
constexpr LauncherRow kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
};
const LauncherRow& kTorchrun = kLaunchers[0];
const LauncherRow& kSlurm = kLaunchers[5];

InputError launch_error(const std::string& text, const std::string& help = kRemedy) {
  Diagnostic problem;
  problem.code = "LAUNCH";
  problem.text = text;
  problem.help = help;
  return InputError(problem);
}

std::optional<std::uint32_t> number(const Variables& variable, const char* name) {
  const std::string text = *name == '\0' ? std::string() : variable(name);
  if (text.empty()) return std::nullopt;
  std::uint32_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size())
    throw launch_error(fmt::format("the environment variable {} is `{}`, which is no whole number", name, clipped(text)));
  return value;
}

// The step rule: see launch.h.
bool is_slurm_step(const Variables& variable) {
  constexpr const char *kBatch = "4294967291", *kInteractive = "4294967290";
  const std::string step = variable("SLURM_STEP_ID");
  if (step.empty() || step == kBatch || step == kInteractive) return false;
  return number(variable, kSlurm.world).value_or(1) > 1;
}

bool is_there(const LauncherRow& row, const Variables& variable) {
  if (&row == &kSlurm) return is_slurm_step(variable);
  return !variable(row.rank).empty() || (&row == &kTorchrun && number(variable, row.world).value_or(1) > 1);
}

std::uint32_t required(const Variables& variable, const LauncherRow& row, const char* name) {
  if (const auto value = number(variable, name)) return *value;
  const char* const other = name == row.rank ? row.world : row.rank;
  throw launch_error(fmt::format("the environment variable {} is set, but {} is not ({})", other, name, row.name));
}

void place_in_world(Launch& launch, const LauncherRow& row, const Variables& variable, const std::optional<std::uint32_t>& local_world) {
  launch.rank = required(variable, row, row.rank);
  launch.world = required(variable, row, row.world);
  const auto local = number(variable, row.local_rank);
  launch.local_rank = local.value_or(launch.rank);
  const auto within = [](const char* name, std::uint32_t value, const char* of, std::uint32_t size) {
    if (value >= size) throw launch_error(fmt::format("{} is {}, but {} is {}: ranks count from 0", name, value, of, size));
  };
  within(row.rank, launch.rank, row.world, launch.world);
  if (local_world && local) within(row.local_rank, *local, row.local_world, *local_world);
  if (local_world && *local_world > launch.world)
    throw launch_error(fmt::format("{} is {}, more than {} = {}", row.local_world, *local_world, row.world, launch.world));
}

// "n[03-07,9]-x,m1" -> "n03-x".
std::string first_host(const std::string& list) {
  std::string host;
  bool inside = false, chosen = false;
  for (const char c : list) {
    if (c == ',' && !inside) break;
    if (c == '[') {
      inside = true, chosen = false;
    } else if (c == ']') {
      inside = false;
    } else if (inside && (c == ',' || c == '-')) {
      chosen = true;
    } else if (!inside || !chosen) {
      host += c;
    }
  }
  return host;
}

std::string slurm_host(const Variables& variable) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
    if (const std::string list = variable(name); !list.empty()) return first_host(list);
  return variable("SLURM_LAUNCH_NODE_IPADDR");
}

std::string store_host(const Launch& launch, const LauncherRow& row, const Variables& variable, bool one_host) {
  std::string host = variable("MASTER_ADDR");
  if (host.empty() && &row == &kSlurm) host = slurm_host(variable);
  if (host.empty() && one_host) host = "127.0.0.1";
  if (!host.empty()) return host;
  throw launch_error(
      fmt::format("process {} of {} ({}) does not know where process 0 runs: MASTER_ADDR is not set", launch.rank, launch.world, row.name),
      "set MASTER_ADDR to the host of process 0 (127.0.0.1 when all run on this one) and MASTER_PORT to a free port of it");
}

std::uint16_t store_port(const LauncherRow& row, const Variables& variable) {
  constexpr std::uint32_t kDefault = 29500;
  const auto stated = number(variable, "MASTER_PORT");
  if (stated && (*stated == 0 || *stated > 65535))
    throw launch_error(fmt::format("MASTER_PORT is {}, and ports are 1 to 65535", *stated),
                       "set MASTER_PORT to a free port of process 0's host");
  if (stated) return static_cast<std::uint16_t>(*stated);
  const auto job = &row == &kSlurm ? number(variable, "SLURM_JOB_ID") : std::nullopt;
  return static_cast<std::uint16_t>(job ? 10000 + *job % 50000 : kDefault);
}

std::string key_prefix(const Variables& variable) {
  std::string prefix = "steptwin/";
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID"})
    if (const std::string part = variable(name); !part.empty()) prefix += part + "/";
  return prefix;
}

}  // namespace

Launch launch_from(const Variables& variable) {
  for (const LauncherRow& row : kLaunchers) {
    if (!is_there(row, variable)) continue;
    Launch launch;
    launch.launcher = row.name;
    const auto local_world = number(variable, row.local_world);
    place_in_world(launch, row, variable, local_world);
    if (launch.alone()) return launch;
    launch.host = store_host(launch, row, variable, local_world == launch.world);
    launch.port = store_port(row, variable);
    launch.agent_store = &row == &kTorchrun && variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
    launch.prefix = key_prefix(variable);
    return launch;
  }
  return {};
}

void require_one_process_per_rank(const Launch& launch, std::uint32_t ranks) {
  if (launch.alone() || launch.world == ranks) return;
  throw launch_error(fmt::format("{} started {} processes, but the schedule has {} rank{}: each process runs one rank", launch.launcher,
                                 launch.world, ranks, ranks == 1 ? "" : "s"),
                     fmt::format("start {} processes, or one that runs all ranks", ranks));
}

}  // namespace steptwin
