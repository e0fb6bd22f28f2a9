#include "exec/cuda/cuda_execution.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <thread>

#include "exec/cpu/finish_run.h"
#include "exec/cuda/cuda_check.h"
#include "exec/cuda/probe.h"
#include "schedule/base/error.h"
#include "schedule/ir/text.h"

namespace steptwin {

const Program& CudaExecution::program(std::uint32_t rank) const {
  return schedule_.programs[matching_.tables[matching_.ranks[rank].tables].program.value];
}

OpId CudaExecution::id_of(std::uint32_t rank, std::uint32_t op) const { return OpId(program(rank).first_op.value + op); }

std::int64_t CudaExecution::now() const { return std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - start_).count(); }

StepMachine::Hooks CudaExecution::hooks() {
  StepMachine::Hooks hooks;
  hooks.begin_step = [this](std::uint32_t rank, std::uint32_t step) { begin_step(rank, step); };
  hooks.step_done = [this](std::uint32_t rank, std::uint32_t step, const OpTimes* times) { step_enqueued(rank, step, times); };
  hooks.marked = [this](std::uint32_t rank, std::uint32_t step, std::uint32_t op) {
    recorder_->marked(rank, step, op);
    if (std::holds_alternative<HostWait>(schedule_.ops[id_of(rank, op).value].body)) announce(rank, op);
  };
  hooks.now = [this] { return now(); };
  hooks.wait = [this](std::uint32_t rank, std::uint32_t lane, std::uint32_t event) {
    const InstructionList& list = lists_[matching_.ranks[rank].tables];
    cuda_check(cudaStreamWaitEvent(ranks_[rank].lanes[lane], ended(rank, list.event_op[event]), 0), "wait for an event");
  };
  hooks.has_happened = [this](std::uint32_t rank, std::uint32_t event) {
    return has_happened(rank, ended(rank, lists_[matching_.ranks[rank].tables].event_op[event]));
  };
  hooks.may_begin = [this](std::uint32_t rank, std::uint32_t step) {
    return step < kSlots || has_happened(rank, ranks_[rank].whole[step % kSlots]);
  };
  hooks.op_ended = [this](std::uint32_t rank, std::uint32_t op) {
    std::vector<BufferPool::Block*> uses = memories_[rank].take_uses(op);
    if (!uses.empty()) ranks_[rank].uses.emplace_back(ended(rank, op), std::move(uses));
  };
  return hooks;
}

bool CudaExecution::has_happened(std::uint32_t rank, cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaErrorNotReady) return ranks_[rank].device_waits = true, false;
  cuda_check(state, "wait for an op");
  return true;
}

// ---- repetitions ------------------------------------------------------------------------------------------------------
// The first lane has joined all others at the end of the repetition before; it loads the inputs, then the others follow it.
void CudaExecution::begin_step(std::uint32_t index, std::uint32_t step) {
  Rank& rank = ranks_[index];
  const std::uint32_t slot = step % kSlots;
  if (step >= kSlots) harvest(index, step - kSlots);
  cuda_check(cudaSetDevice(rank.device), "select the device");
  rank.memory->use_stream(rank.lanes.front());
  rank.memory->open_slot(slot);
  cuda_check(cudaEventRecord(rank.base[slot], rank.lanes.front()), "record an event");
  if (step == 0) {
    cuda_check(cudaEventSynchronize(rank.base[slot]), "start");
    rank.base_time[slot] = now();
  }
  training_->begin_step(index, step);
  cuda_check(cudaEventRecord(rank.opened, rank.lanes.front()), "record an event");
  for (std::size_t lane = 1; lane < rank.lanes.size(); ++lane)
    cuda_check(cudaStreamWaitEvent(rank.lanes[lane], rank.opened, 0), "wait for an event");
  rank.begun = step + 1;
  recorder_->begin_step(index, step);
}

void CudaExecution::step_enqueued(std::uint32_t index, std::uint32_t step, const OpTimes* times) {
  Rank& rank = ranks_[index];
  const std::uint32_t slot = step % kSlots;
  for (std::uint32_t op = 0; op < program(index).op_count; ++op) {
    rank.issues[slot][op] = times[op].issue;
    rank.host_ends[slot][op] = times[op].end;
  }
  for (std::size_t lane = 1; lane < rank.lanes.size(); ++lane) {
    cuda_check(cudaEventRecord(rank.tails[lane], rank.lanes[lane]), "record an event");
    cuda_check(cudaStreamWaitEvent(rank.lanes.front(), rank.tails[lane], 0), "wait for an event");
  }
  cuda_check(cudaEventRecord(rank.whole[slot], rank.lanes.front()), "record an event");
  rank.memory->use_stream(rank.lanes.front());
  training_->end_step(index, step);
}

// False: another process ends the run, and the event may never happen.
bool CudaExecution::await(cudaEvent_t event) {
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) {
      std::string text = fmt::format("the device failed: {} ({})", cudaGetErrorString(state), cudaGetErrorName(state));
      for (const std::string& line : positions()) text += "\n  " + line;
      throw EnvironmentError(EnvironmentError::Kind::Device, text);
    }
    check_deadline();
    check_host_work();
    if (options_.group != nullptr) {
      options_.group->check();
      if (stopped()) options_.group->end(ProcessGroup::Ending::Interrupted);
      if (options_.group->ending() != ProcessGroup::Ending::None) return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

bool CudaExecution::harvest(std::uint32_t index, std::uint32_t step) {
  Rank& rank = ranks_[index];
  const std::uint32_t slot = step % kSlots;
  if (!await(rank.whole[slot])) return false;
  progress_ = std::chrono::steady_clock::now();
  end_uses(rank);
  rank.memory->deliver(slot);
  const auto since_base = [&](cudaEvent_t event) {
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, rank.base[slot], event), "read an event's time");
    return rank.base_time[slot] + static_cast<std::int64_t>(static_cast<double>(ms) * 1e6);
  };
  std::vector<Timeline::Measured> ops(program(index).op_count);
  for (std::uint32_t op = 0; op < ops.size(); ++op) {
    const OpBody& body = schedule_.ops[id_of(index, op).value].body;
    ops[op].issue = rank.issues[slot][op];
    const bool local = std::holds_alternative<Compute>(body) || std::holds_alternative<Copy>(body);
    ops[op].end = std::holds_alternative<HostWait>(body) ? rank.host_ends[slot][op] : since_base(rank.events[slot][op].ended);
    ops[op].reached = local ? since_base(rank.events[slot][op].reached) : 0;
  }
  timeline_->measured(index, step, std::move(ops));
  rank.harvested = step + 1;
  if (rank.begun > step + 1) {  // the next repetition's base: a chain of short distances keeps the digits of a float
    const std::uint32_t next = (step + 1) % kSlots;
    if (!await(rank.base[next])) return false;
    rank.base_time[next] = since_base(rank.base[next]);
  }
  return true;
}

// Uses end in the order of their events only per lane, so all are looked at.
void CudaExecution::end_uses(Rank& rank) {
  BufferPool& pool = memories_[static_cast<std::size_t>(&rank - ranks_.data())].pool();
  std::erase_if(rank.uses, [&](const auto& use) {
    if (cudaEventQuery(use.first) == cudaErrorNotReady) return false;
    for (BufferPool::Block* block : use.second) pool.end_use(block);
    return true;
  });
}

ExecutionResult CudaExecution::run() {
  training_->initialise_parameters();
  for (Rank& rank : ranks_) {
    cuda_check(cudaSetDevice(rank.device), "select the device");
    cuda_check(cudaDeviceSynchronize(), "load the parameters");
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) rank.memory->deliver(slot);
  }
  const bool begins = options_.group == nullptr || options_.group->barrier("start", options_.stop);
  start_ = progress_ = std::chrono::steady_clock::now();
  try {
    machine_->start();
    if (begins) drive();
    for (std::uint32_t r = 0; r < ranks_.size() && machine_->finished(); ++r)
      while (ranks_[r].harvested < ranks_[r].begun && harvest(r, ranks_[r].harvested)) {
      }
    check_host_work();
  } catch (...) {
    transport_->abort();
    throw;
  }
  const Outcome end = outcome();
  if (end.status == Status::Ok) save();
  if (end.status != Status::Ok) transport_->abort();  // what other processes do not answer would never end
  if (options_.group != nullptr) options_.group->report(ProcessGroup::Activity::Done, machine_->ops_done(), [] { return std::string(); });
  const auto times = timeline_->times();
  for (std::uint32_t r = 0; r < ranks_.size(); ++r)
    for (std::uint32_t step = 0; step < times[r].size(); ++step) recorder_->step_done(r, step, times[r][step].data());
  ExecutionResult result = finish_run(schedule_, options_, matching_, *training_, *recorder_, {end, machine_->ops_done(), start_});
  result.trace.engine = "cuda";
  result.facts = facts();
  return result;
}

void CudaExecution::save() {
  for (const Rank& rank : ranks_) {
    cuda_check(cudaSetDevice(rank.device), "select the device");
    cuda_check(cudaDeviceSynchronize(), "end the last step");
    rank.memory->use_stream(rank.lanes.front());
  }
  training_->save();
}

std::vector<RunFact> CudaExecution::facts() const {
  std::vector<RunFact> facts = training_->facts();
  std::int64_t reserved = 0;
  for (const RankMemory& memory : memories_) reserved += memory.pool().reserved(Space::Device);
  if (partitions_) facts.push_back({"multiprocessors_per_rank", "SMs per rank", "1", static_cast<double>(partitions_->multiprocessors(0))});
  if (puts_ > 0) facts.push_back({"host_time_per_op_ns", "host per op", "ns", static_cast<double>(put_time_ / puts_)});
  if (const double mhz = multiprocessor_clock(ranks_.empty() ? 0 : ranks_.front().device); mhz > 0)
    facts.push_back({"multiprocessor_clock_mhz", "SM clock", "MHz", mhz});  // right behind the last step
  facts.push_back({"buffers_reserved_bytes", "IR buffers", "B", static_cast<double>(reserved)});
  return facts;
}

// ---- explanations -----------------------------------------------------------------------------------------------------
std::vector<std::string> CudaExecution::positions() const {
  const std::vector<std::string> host = machine_->positions();
  std::vector<std::string> lines;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    lines.push_back(host[r]);
    for (std::uint32_t step = ranks_[r].harvested; step < ranks_[r].begun; ++step) {
      const auto& events = ranks_[r].events[step % kSlots];
      std::uint32_t op = 0;
      while (op < events.size() &&
             (std::holds_alternative<HostWait>(schedule_.ops[id_of(r, op).value].body) || cudaEventQuery(events[op].ended) == cudaSuccess))
        ++op;
      if (op == events.size()) continue;
      lines.back() += fmt::format("; its device has not ended `{}` of step {}", labels_[id_of(r, op).value], step);
      break;
    }
  }
  return lines;
}

Outcome CudaExecution::outcome() const {
  Outcome outcome;
  const auto ending = options_.group == nullptr ? ProcessGroup::Ending::None : options_.group->ending();
  if (machine_->finished() && ending == ProcessGroup::Ending::None) return outcome;
  outcome.details = machine_->positions();
  const bool interrupted = stopped() || ending == ProcessGroup::Ending::Interrupted;
  if (interrupted && options_.group != nullptr) options_.group->end(ProcessGroup::Ending::Interrupted);
  outcome.status = interrupted ? Status::Interrupted : Status::Deadlock;
  outcome.text = interrupted ? "stopped by a signal" : "the step cannot go on: every rank waits for another";
  return outcome;
}

void CudaExecution::check_deadline() {
  if (options_.deadline.count() == 0 || std::chrono::steady_clock::now() - progress_.load() < options_.deadline) return;
  std::uint32_t step = machine_->slowest_step();
  for (const Rank& rank : ranks_) step = std::min(step, rank.harvested);
  std::string text = fmt::format("the deadline of {} ms passed in step {}", options_.deadline.count(), step);
  for (const std::string& line : positions()) text += "\n  " + line;
  throw EnvironmentError(EnvironmentError::Kind::Device, text, "a longer --timeout, or look at the ops named above");
}

}  // namespace steptwin
