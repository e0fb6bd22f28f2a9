// How a CUDA execution is set up and taken down: devices, partitions, streams, events, memory, transport.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "exec/cpu/failure.h"
#include "exec/cuda/cuda_check.h"
#include "exec/cuda/cuda_execution.h"
#include "exec/present.h"
#include "schedule/base/error.h"
#include "schedule/ir/text.h"

namespace steptwin {

namespace {

cudaEvent_t new_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, flags), "create an event");
  return event;
}

int device_count() {
  int count = 0;
  cuda_check(cudaGetDeviceCount(&count), "find a CUDA device");
  if (count == 0) throw EnvironmentError(EnvironmentError::Kind::Device, "this computer has no CUDA device", "--backend cpu");
  return count;
}

// One of several processes: the GPU of its number on this host.
int device_of_process(const Launch& launch) {
  const int count = device_count();
  const auto device = static_cast<int>(launch.local_rank);
  if (device < count) return device;
  throw EnvironmentError(
      EnvironmentError::Kind::Device,
      fmt::format("rank {} is process {} of this host, which has {} GPU{}; every process needs one of its own", launch.rank, device, count,
                  count == 1 ? "" : "s"),
      "start at most as many processes a host as it has GPUs, or one process without a launcher, whose ranks share a GPU (--transport local)");
}

// auto: one rank per GPU over NCCL where there are enough GPUs, else all ranks on the first.
std::vector<int> devices_of(const ExecuteOptions& options, std::size_t ranks) {
  if (options.group != nullptr) return std::vector<int>(ranks, device_of_process(options.group->launch()));
  const int count = device_count();
  std::vector<int> devices(ranks, 0);
  if (options.transport == TransportChoice::Local) return devices;
  for (std::size_t r = 0; r < ranks; ++r) devices[r] = static_cast<int>(r % static_cast<std::size_t>(count));
  if (options.transport == TransportChoice::Auto && static_cast<std::size_t>(count) < ranks) std::fill(devices.begin(), devices.end(), 0);
  return devices;
}

// A compute op of a host lane runs on the host when all its operands lie there (CudaExecution::runs_on_host), else on the device, which cannot
// reach pageable memory.
void refuse_mixed_host_compute(const Schedule& schedule) {
  for (std::uint32_t i = 0; i < schedule.ops.size(); ++i) {
    const OpId id(i);
    const Op& op = schedule.ops[i];
    if (!std::holds_alternative<Compute>(op.body)) continue;
    const Program& program = schedule.program_of(id);
    const auto accesses = schedule.accesses_of(id);
    const auto touches = [&](Space space) {
      return std::any_of(accesses.begin(), accesses.end(), [&](const Access& a) { return program.buffers[a.buffer.value].space == space; });
    };
    if (program.lanes[op.lane.value].engine == Engine::Host && touches(Space::Device) && touches(Space::Pageable))
      throw EnvironmentError(EnvironmentError::Kind::Device,
                             fmt::format("op `{}` computes on device memory and on pageable memory at once", print_op(schedule, id)),
                             "--backend cpu, or copy its operands into one of the two first");
  }
}

}  // namespace

CudaExecution::CudaExecution(const Schedule& schedule, const ExecuteOptions& options)
    : schedule_(schedule),
      options_(options),
      matching_(matching_of(schedule, options.group)),
      start_(std::chrono::steady_clock::now()),
      progress_(start_) {
  refuse_mixed_host_compute(schedule);
  for (const ProgramTables& tables : matching_.tables) {
    lists_.push_back(lower(schedule, tables));
    const std::vector<Diagnostic> problems = check_instructions(schedule, tables, lists_.back());
    if (!problems.empty()) throw InternalError("lowering: " + problems.front().code + " " + problems.front().text);
  }
  for (const Communicator& comm : schedule.communicators) comms_.push_back(expand(schedule.mesh, comm));
  for (std::uint32_t op = 0; op < schedule.ops.size(); ++op) labels_.push_back(print_op(schedule, OpId(op)));
  const std::vector<int> devices = devices_of(options, matching_.ranks.size());
  const bool spread = devices.size() > 1 && devices.front() != devices.back();
  if (options.partitions > 0) {
    if (spread)
      throw EnvironmentError(EnvironmentError::Kind::Device, "--partition divides one GPU, and these ranks have one each",
                             "--transport local");
    if (options.partitions < devices.size())
      throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("{} partitions for {} ranks", options.partitions, devices.size()),
                             fmt::format("--partition {}", devices.size()));
    partitions_ = std::make_unique<SmPartitions>(devices.empty() ? 0 : devices.front(), options.partitions);
  }
  ranks_.resize(matching_.ranks.size());
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) ranks_[r].device = devices[r];
  const bool nccl = options.group != nullptr || options.transport == TransportChoice::Nccl || (options.transport == TransportChoice::Auto && spread);
  NcclSetting setting;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) setting.device_of_rank[matching_.ranks[r].rank.value] = devices[r];
  setting.group = options.group;
  if (options.deadline.count() > 0) setting.limit = options.deadline;
  setting.look = [this] { look(); };
  transport_ = nccl ? nccl_transport(schedule, std::move(setting)) : local_transport();
  memories_.reserve(ranks_.size());
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) set_up_rank(r);
  training_ = std::make_unique<TrainingState>(schedule, matching_, memories_, options);
  recorder_ = std::make_unique<Recorder>(schedule, matching_, memories_, options.warm_up, [this] { return now(); });
  timeline_ = std::make_unique<Timeline>(matching_, lists_, options.warm_up + options.steps);
  machine_ = std::make_unique<StepMachine>(schedule, matching_, lists_, memories_, options.warm_up + options.steps, hooks());
}

CudaExecution::~CudaExecution() {
  for (const Rank& rank : ranks_) {
    cudaSetDevice(rank.device);
    cudaDeviceSynchronize();
  }
  machine_.reset();
  recorder_.reset();
  training_.reset();
  memories_.clear();
  transport_.reset();
  for (Rank& rank : ranks_) {
    cudaSetDevice(rank.device);
    rank.memory.reset();
    for (const auto& slot : rank.events)
      for (const OpEvents& events : slot) cudaEventDestroy(events.reached), cudaEventDestroy(events.ended);
    for (cudaEvent_t event : rank.base) cudaEventDestroy(event);
    for (cudaEvent_t event : rank.whole) cudaEventDestroy(event);
    for (cudaEvent_t event : rank.tails) cudaEventDestroy(event);
    cudaEventDestroy(rank.opened);
    for (cudaStream_t stream : rank.lanes) cudaStreamDestroy(stream);
  }
}

void CudaExecution::make_streams(Rank& rank, const Program& p, std::uint32_t index) {
  int lowest = 0, highest = 0;
  cuda_check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "ask for stream priorities");
  for (std::size_t lane = 0; lane < std::max<std::size_t>(1, p.lanes.size()); ++lane) {  // the first one also loads inputs
    const int priority = lane < p.lanes.size() && p.lanes[lane].priority == Priority::High ? highest : lowest;
    cudaStream_t stream = nullptr;
    if (partitions_) {
      stream = partitions_->stream(index, priority);
    } else {
      cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "create a stream");
    }
    rank.lanes.push_back(stream);
    rank.tails.push_back(new_event(cudaEventDisableTiming));
  }
}

void CudaExecution::set_up_rank(std::uint32_t index) {
  Rank& rank = ranks_[index];
  const Program& p = program(index);
  cuda_check(cudaSetDevice(rank.device), "select the device");
  make_streams(rank, p, index);
  rank.memory = std::make_unique<CudaMemory>(rank.device, rank.lanes.front());
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    for (std::uint32_t op = 0; op < p.op_count; ++op)
      rank.events[slot].push_back({new_event(cudaEventDefault), new_event(cudaEventDefault)});
    rank.issues[slot].resize(p.op_count);
    rank.host_ends[slot].resize(p.op_count);
    rank.base[slot] = new_event(cudaEventDefault);
    rank.whole[slot] = new_event(cudaEventDefault);
  }
  rank.opened = new_event(cudaEventDisableTiming);
  try {
    memories_.emplace_back(schedule_, p, matching_.ranks[index].rank, comms_, *rank.memory);
  } catch (...) {
    rethrow_from(fmt::format("rank {} failed while allocating its resident buffers", matching_.ranks[index].rank.value));
  }
  memories_.back().pool().before_allocation([this, index] { end_uses(ranks_[index]); });
}

}  // namespace steptwin
