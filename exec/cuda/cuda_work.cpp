// What an issuing thread does for an op: its calls into LibTorch, CUDA and the transport, all outside the lock.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>

#include "exec/comm/members.h"
#include "exec/cpu/failure.h"
#include "exec/cuda/cuda_check.h"
#include "exec/cuda/cuda_execution.h"
#include "exec/cuda/kernels.h"
#include "exec/cuda/lane_guard.h"
#include "schedule/base/error.h"

namespace steptwin {

namespace {

// Memory that a kernel reaches, for `data` itself or, of pageable memory, in its stead while the stream passes here.
class PassingMemory {
 public:
  PassingMemory(std::byte* data, std::int64_t bytes, cudaStream_t stream) : data_(data), size_(static_cast<std::size_t>(bytes)), stream_(stream) {
    cudaPointerAttributes attributes{};
    cuda_check(cudaPointerGetAttributes(&attributes, data), "ask where memory lies");
    passes_ = attributes.type == cudaMemoryTypeUnregistered;
    if (passes_) cuda_check(cudaMallocAsync(&data_, size_, stream), "take memory for a cast");
  }
  ~PassingMemory() {
    if (passes_) cudaFreeAsync(data_, stream_);
  }
  PassingMemory(const PassingMemory&) = delete;
  PassingMemory& operator=(const PassingMemory&) = delete;
  bool passes() const { return passes_; }
  void* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void* data_;
  std::size_t size_;
  cudaStream_t stream_;
  bool passes_ = false;
};

}  // namespace

void CudaExecution::announce(std::uint32_t rank, std::uint32_t op) const {
  if (options_.before_op) options_.before_op(matching_.ranks[rank].rank, id_of(rank, op), machine_->step(rank));
}

template <class Work>
void CudaExecution::at_op(std::uint32_t rank, std::uint32_t op, Work work) const {
  try {
    work();
  } catch (...) {
    rethrow_from(schedule_, matching_.ranks[rank].rank, id_of(rank, op), machine_->step(rank));
  }
}

// Called with the lock, which is open while the work is put into its stream. Several tasks: transfers that go on together.
void CudaExecution::put(const std::vector<Task>& tasks, std::unique_lock<std::mutex>& lock) {
  for (const Task& task : tasks) machine_->began(task);
  lock.unlock();
  const std::int64_t begin = now();
  nvtxRangePushA(labels_[id_of(tasks.front().rank, tasks.front().op).value].c_str());
  try {
    tasks.front().transfer ? put_transfers(tasks) : put_local(tasks.front());
  } catch (...) {
    nvtxRangePop();
    lock.lock();
    throw;
  }
  nvtxRangePop();
  const std::int64_t end = now();
  lock.lock();
  put_time_ += end - begin, puts_ += static_cast<std::int64_t>(tasks.size());
  for (const Task& task : tasks) {
    timeline_->enqueued(machine_->step(task.rank), members_of(task));
    machine_->ended(task);
  }
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> CudaExecution::members_of(const Task& task) const {
  if (!task.transfer) return {{task.rank, task.op}};
  std::vector<std::pair<std::uint32_t, std::uint32_t>> members;
  for (const TransferEnd& end : machine_->ends_of(task)) members.emplace_back(end.rank, end.op);
  return members;
}

void CudaExecution::put_local(const Task& task) {
  Rank& rank = ranks_[task.rank];
  const cudaStream_t stream = rank.lanes[task.lane];
  const OpEvents& events = rank.events[machine_->step(task.rank) % kSlots][task.op];
  at_op(task.rank, task.op, [&] {
    announce(task.rank, task.op);
    cuda_check(cudaSetDevice(rank.device), "select the device");
    rank.memory->use_stream(stream);
    cuda_check(cudaEventRecord(events.reached, stream), "record an event");
    if (memories_[task.rank].does_work(task.op)) {
      const OpId id = id_of(task.rank, task.op);
      const Op& op = schedule_.ops[id.value];
      if (std::holds_alternative<Copy>(op.body)) {
        copy(op, task, stream);
      } else {
        compute(task, id, stream);
      }
    } else {
      training_->guarded_off(task.rank, machine_->step(task.rank), task.op);
    }
    cuda_check(cudaEventRecord(events.ended, stream), "record an event");
  });
}

void CudaExecution::compute(const Task& task, OpId id, cudaStream_t stream) {
  const auto operands = memories_[task.rank].operands(task.op);
  if (operands.empty()) return;  // an op of a schedule text that only states its time
  const std::uint32_t step = machine_->step(task.rank);
  training_->before_op(task.rank, step, task.op);
  if (runs_on_host(id)) return put_host_work(task, id, stream);
  StepContext context = training_->context(task.rank, step);
  context.device = ranks_[task.rank].device;
  {
    const LaneGuard guard(stream, context.device);
    run_compute(schedule_, schedule_.program_of(id), id, operands, context);
  }
  training_->after_op(task.rank, step, task.op);
}

// All its operands lie in host memory, and its lane is the host's: Adam on offloaded states.
bool CudaExecution::runs_on_host(OpId id) const {
  const Program& p = schedule_.program_of(id);
  if (p.lanes[schedule_.ops[id.value].lane.value].engine != Engine::Host) return false;
  const auto accesses = schedule_.accesses_of(id);
  return std::none_of(accesses.begin(), accesses.end(), [&](const Access& a) { return p.buffers[a.buffer.value].space == Space::Device; });
}

// In the order of its stream, on a thread of the driver, which must not call CUDA.
void CudaExecution::put_host_work(const Task& task, OpId id, cudaStream_t stream) {
  struct HostWork {
    CudaExecution& execution;
    Task task;
    OpId id;
    std::uint32_t step;
    std::vector<BoundAccess> operands;
    StepContext context;
  };
  const auto operands = memories_[task.rank].operands(task.op);
  const std::uint32_t step = machine_->step(task.rank);
  auto work =
      std::make_unique<HostWork>(HostWork{*this, task, id, step, {operands.begin(), operands.end()}, training_->context(task.rank, step)});
  const auto run = [](void* data) {
    const std::unique_ptr<HostWork> w(static_cast<HostWork*>(data));
    const Schedule& schedule = w->execution.schedule_;
    try {
      run_compute(schedule, schedule.program_of(w->id), w->id, w->operands, w->context);
    } catch (...) {
      w->execution.note_host_failure(w->task, w->step);
    }
  };
  cuda_check(cudaLaunchHostFunc(stream, run, work.get()), "put host work into a stream");
  work.release();
}

// Called in a catch block.
void CudaExecution::note_host_failure(const Task& task, std::uint32_t step) {
  const std::lock_guard lock(host_mutex_);
  if (host_failure_) return;
  try {
    rethrow_from(schedule_, matching_.ranks[task.rank].rank, id_of(task.rank, task.op), step);
  } catch (...) {
    host_failure_ = std::current_exception();
  }
}

void CudaExecution::check_host_work() {
  const std::lock_guard lock(host_mutex_);
  if (host_failure_) std::rethrow_exception(host_failure_);
}

void CudaExecution::copy(const Op& op, const Task& task, cudaStream_t stream) {
  const MemberMemory memory = memories_[task.rank].member_memory(task.op);
  const Copy& body = std::get<Copy>(op.body);
  if (memory.in.empty() || memory.out.empty()) return;
  const std::int64_t elements = memory.in.bytes() / size_of(body.from);
  if (memory.out.bytes() < elements * size_of(body.to))
    throw EnvironmentError(EnvironmentError::Kind::Device,
                           fmt::format("a copy of {} elements does not fit {} bytes", elements, memory.out.bytes()));
  if (body.from == body.to) {
    each_stretch(memory.in, 0, memory.out, 0, memory.in.bytes(), [stream](std::byte* to, const std::byte* from, std::size_t bytes) {
      cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copy");
    });
    return;
  }
  const FlatView::Stretch from = memory.in.from(0), to = memory.out.from(0);
  if (from.bytes != memory.in.bytes() || to.bytes != memory.out.bytes())
    throw EnvironmentError(EnvironmentError::Kind::Device, "a copy with a cast has one source and one target");
  // Kernels reach device and pinned memory; what lies elsewhere takes a way over device memory.
  const PassingMemory source(from.data, from.bytes, stream), target(to.data, elements * size_of(body.to), stream);
  if (source.passes()) cuda_check(cudaMemcpyAsync(source.data(), from.data, source.size(), cudaMemcpyDefault, stream), "copy");
  kernels::convert(target.data(), body.to, source.data(), body.from, elements, stream);
  if (target.passes()) cuda_check(cudaMemcpyAsync(to.data, target.data(), target.size(), cudaMemcpyDefault, stream), "copy");
}

// Empty: the guard says no.
std::optional<Transfer> CudaExecution::transfer_of(const Task& task, const std::vector<TransferEnd>& ends) const {
  Transfer transfer{&schedule_.ops[id_of(task.rank, task.op).value].body, machine_->name_of(task), {}};
  bool works = true;
  for (const TransferEnd& end : ends) {
    const Rank& rank = ranks_[end.rank];
    const cudaStream_t stream = rank.lanes[matching_.tables[matching_.ranks[end.rank].tables].nodes[end.op].lane];
    at_op(end.rank, end.op, [&] {
      announce(end.rank, end.op);
      CudaMemory reader(rank.device, stream);  // the rank's own belongs to its thread
      works = memories_[end.rank].does_work(end.op, reader) && works;
    });
    transfer.members.push_back({matching_.ranks[end.rank].rank, end.member, rank.device, stream, memories_[end.rank].member_memory(end.op)});
  }
  return works ? std::optional(std::move(transfer)) : std::nullopt;
}

void CudaExecution::put_transfers(const std::vector<Task>& tasks) {
  std::vector<Transfer> transfers;
  std::vector<TransferEnd> all_ends;
  for (const Task& task : tasks) {
    const std::vector<TransferEnd> ends = machine_->ends_of(task);
    if (auto transfer = transfer_of(task, ends)) transfers.push_back(std::move(*transfer));
    all_ends.insert(all_ends.end(), ends.begin(), ends.end());
  }
  at_op(all_ends.front().rank, all_ends.front().op, [&] {
    if (!transfers.empty()) transport_->move(transfers);
    for (const TransferEnd& end : all_ends) {
      const Rank& rank = ranks_[end.rank];
      cuda_check(cudaSetDevice(rank.device), "select the device");
      const std::uint32_t lane = matching_.tables[matching_.ranks[end.rank].tables].nodes[end.op].lane;
      cuda_check(cudaEventRecord(ended(end.rank, end.op), rank.lanes[lane]), "record an event");
    }
  });
}

}  // namespace steptwin
