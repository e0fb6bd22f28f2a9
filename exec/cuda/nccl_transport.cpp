// NCCL, this process issuing for its ranks: every transfer is one NCCL group that holds the calls of all members that are here, so their order
// is the same everywhere and no member's launch waits behind another's kernel (specs/execution.md 3). Of several processes each makes its own
// member's call, in the order of its program.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "exec/cuda/cuda_check.h"
#include "exec/cuda/transport.h"
#include "exec/process_group.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

void nccl_check(ncclResult_t code, const char* what, ncclComm_t comm = nullptr) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const char* detail = ncclGetLastError(comm);
  throw EnvironmentError(EnvironmentError::Kind::Device,
                         fmt::format("cannot {}: NCCL {}{}{}", what, ncclGetErrorString(code),
                                     detail != nullptr && *detail != '\0' ? ": " : "", detail == nullptr ? "" : detail),
                         "NCCL_DEBUG=INFO prints more");
}

ncclDataType_t type_of(DType type) {
  switch (type) {
    case DType::Fp32:
      return ncclFloat32;
    case DType::Bf16:
      return ncclBfloat16;
    case DType::Fp16:
      return ncclFloat16;
    case DType::Int64:
      return ncclInt64;
    case DType::Int32:
      return ncclInt32;
    case DType::Uint8:
      return ncclUint8;
  }
  return ncclUint8;
}

// The one stretch of memory that a call of NCCL takes.
std::byte* dense(const FlatView& view, std::int64_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  if (view.bytes() < bytes)
    throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("{} bytes of {} where {} are needed", view.bytes(), what, bytes));
  const FlatView::Stretch stretch = view.from(0);
  if (stretch.bytes < bytes) throw EnvironmentError(EnvironmentError::Kind::Device, fmt::format("NCCL needs its {} in one piece", what));
  return stretch.data;
}

// Inputs and outputs of an op that works element by element on several buffers, buffer by buffer; alike at all members, whose ops are.
struct Pieces {
  std::byte *in = nullptr, *out = nullptr;
  std::int64_t bytes = 0;
};
std::vector<Pieces> pieces_of(const MemberMemory& memory, std::int64_t bytes) {
  const auto &in = memory.in.stretches(), &out = memory.out.stretches();
  const bool alike = std::equal(in.begin(), in.end(), out.begin(), out.end(), [](const auto& a, const auto& b) { return a.bytes == b.bytes; });
  if (!alike || memory.in.bytes() != bytes) return {{dense(memory.in, bytes, "input"), dense(memory.out, bytes, "output"), bytes}};
  std::vector<Pieces> pieces;
  for (std::size_t i = 0; i < in.size(); ++i)
    if (in[i].bytes > 0) pieces.push_back({in[i].data, out[i].data, in[i].bytes});
  return pieces;
}

std::size_t count_of(std::int64_t bytes, DType type, std::int64_t parts) {
  if (bytes % (size_of(type) * parts) != 0)
    throw EnvironmentError(EnvironmentError::Kind::Device,
                           fmt::format("NCCL cannot split {} bytes of {} among {} ranks", bytes, name_of(type), parts),
                           "sizes that divide, or --transport local");
  return static_cast<std::size_t>(bytes / size_of(type) / parts);
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(const Schedule& schedule, NcclSetting setting) : setting_(std::move(setting)) {
    refuse_shared_devices();
    std::set<std::uint32_t> used;
    for (const Op& op : schedule.ops)
      if (const CommId comm = comm_of(op.body); comm.valid()) used.insert(comm.value);
    comms_.resize(schedule.communicators.size());
    for (const std::uint32_t c : used) connect(c, expand(schedule.mesh, schedule.communicators[c]));
  }
  ~NcclTransport() override {
    for (auto& by_rank : comms_)
      for (auto& [rank, comm] : by_rank)
        if (!aborted_) ncclCommDestroy(comm);
  }
  std::string name() const override { return "nccl"; }
  bool can_hang() const override { return true; }

  // All at once: an abort waits for its device, where kernels of another communicator may still wait for their peers.
  void abort() override {
    if (aborted_.exchange(true)) return;
    std::vector<std::thread> threads;
    for (auto& by_rank : comms_)
      for (auto& entry : by_rank) threads.emplace_back([comm = entry.second] { ncclCommAbort(comm); });
    for (std::thread& thread : threads) thread.join();
  }

  void move(const std::vector<Transfer>& transfers) override {
    if (aborted_) throw EnvironmentError(EnvironmentError::Kind::Device, "the NCCL communicators were aborted");
    nccl_check(ncclGroupStart(), "open an NCCL group");
    try {
      for (const Transfer& transfer : transfers)
        for (const TransportMember& member : transfer.members)
          if (!member.memory.in.empty() || !member.memory.out.empty()) call(transfer, member);
    } catch (...) {
      ncclGroupEnd();
      throw;
    }
    nccl_check(ncclGroupEnd(), "launch an NCCL group");
    for (const Transfer& transfer : transfers)
      for (const TransportMember& member : transfer.members) settle(comm(*transfer.body, member));
  }

 private:
  void refuse_shared_devices() const {
    int version = 0;
    ncclGetVersion(&version);
    std::map<int, std::uint32_t> users;
    for (const auto& [rank, device] : setting_.device_of_rank) {
      const auto [user, alone] = users.try_emplace(device, rank);
      if (alone) continue;
      const char* allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
      if (version >= 23003 && allowed != nullptr && std::string_view(allowed) == "1") return;
      throw EnvironmentError(
          EnvironmentError::Kind::Device,
          fmt::format("ranks {} and {} share GPU {}, and NCCL {}.{}.{} takes one rank per GPU", user->second, rank, device, version / 10000,
                      version / 100 % 100, version % 100),
          version >= 23003 ? "--transport local, or NCCL_MULTI_RANK_GPU_ENABLE=1 (experimental)"
                           : "--transport local, or as many GPUs as ranks");
    }
  }

  void connect(std::uint32_t c, const CommInstances& instances) {
    for (std::uint32_t i = 0; i < instances.members.size(); ++i) {
      const std::vector<RankId>& members = instances.members[i];
      const auto is_here = [this](RankId rank) { return setting_.device_of_rank.count(rank.value) > 0; };
      if (std::none_of(members.begin(), members.end(), is_here)) continue;
      const ncclUniqueId id = shared_id(fmt::format("nccl/{}.{}", c, i), is_here(members.front()));
      nccl_check(ncclGroupStart(), "open an NCCL group");
      for (std::size_t m = 0; m < members.size(); ++m) {
        if (!is_here(members[m])) continue;
        cuda_check(cudaSetDevice(setting_.device_of_rank.at(members[m].value)), "select the device");
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        nccl_check(ncclCommInitRankConfig(&comms_[c][members[m].value], static_cast<int>(members.size()), id, static_cast<int>(m), &config),
                   "join an NCCL communicator");
      }
      nccl_check(ncclGroupEnd(), "make an NCCL communicator");
      for (const RankId member : members)
        if (is_here(member)) settle(comms_[c][member.value]);
    }
  }

  // Made where the lowest member is, who must outlive it; an id is used once.
  ncclUniqueId shared_id(const std::string& key, bool makes_it) const {
    ncclUniqueId id{};
    if (makes_it) nccl_check(ncclGetUniqueId(&id), "make an NCCL id");
    if (setting_.group == nullptr) return id;
    if (makes_it) {
      setting_.group->store().set(key, {id.internal, sizeof id.internal});
      return id;
    }
    const auto value = setting_.group->await(key);
    if (!value || value->size() != sizeof id.internal)
      throw EnvironmentError(EnvironmentError::Kind::Device, "the run ended before its NCCL communicators were made");
    std::copy(value->begin(), value->end(), id.internal);
    return id;
  }

  // A nonblocking call is over when the communicator says so.
  void settle(ncclComm_t comm) const {
    ncclResult_t state = ncclInProgress;
    const auto begin = std::chrono::steady_clock::now();
    while (state == ncclInProgress) {
      nccl_check(ncclCommGetAsyncError(comm, &state), "ask an NCCL communicator", comm);
      if (state != ncclInProgress) break;
      if (setting_.look) setting_.look();
      if (std::chrono::steady_clock::now() - begin > setting_.limit)
        throw EnvironmentError(EnvironmentError::Kind::Device,
                               fmt::format("an NCCL communicator did not come up or launch within {} s", setting_.limit.count() / 1000));
      std::this_thread::yield();
    }
    nccl_check(state, "use an NCCL communicator", comm);
  }

  ncclComm_t comm(const OpBody& body, const TransportMember& member) const { return comms_[comm_of(body).value].at(member.rank.value); }

  void call(const Transfer& transfer, const TransportMember& m) const {
    const OpBody& body = *transfer.body;
    const auto n = static_cast<std::int64_t>(transfer.name.members);
    const ncclComm_t c = comm(body, m);
    cuda_check(cudaSetDevice(m.device), "select the device");
    std::visit(
        Overloaded{
            [&](const AllReduce& op) {
              const auto sum = op.reduction == AllReduce::Reduction::Max ? ncclMax : ncclSum;
              for (const Pieces& piece : pieces_of(m.memory, op.bytes.value))
                nccl_check(ncclAllReduce(piece.in, piece.out, count_of(piece.bytes, op.dtype, 1), type_of(op.dtype), sum, c, m.stream),
                           "all-reduce", c);
            },
            [&](const ReduceScatter& op) {
              nccl_check(ncclReduceScatter(dense(m.memory.in, op.bytes.value, "input"), dense(m.memory.out, op.bytes.value / n, "output"),
                                           count_of(op.bytes.value, op.dtype, n), type_of(op.dtype), ncclSum, c, m.stream),
                         "reduce-scatter", c);
            },
            [&](const AllGather& op) {
              nccl_check(ncclAllGather(dense(m.memory.in, op.bytes.value / n, "input"), dense(m.memory.out, op.bytes.value, "output"),
                                       count_of(op.bytes.value, op.dtype, n), type_of(op.dtype), c, m.stream),
                         "all-gather", c);
            },
            [&](const Broadcast& op) {
              const std::uint32_t root = op.root.resolve(0, static_cast<std::uint32_t>(n));
              const FlatView& own = m.member == root ? m.memory.in : m.memory.out;
              std::byte* const data = dense(own, op.bytes.value, "a broadcast");
              nccl_check(
                  ncclBroadcast(data, data, count_of(op.bytes.value, op.dtype, 1), type_of(op.dtype), static_cast<int>(root), c, m.stream),
                  "broadcast", c);
            },
            [&](const AllToAll& op) {
              const std::int64_t piece = op.bytes.value / n;
              std::byte *const in = dense(m.memory.in, op.bytes.value, "input"), *const out = dense(m.memory.out, op.bytes.value, "output");
              if (in == out) throw EnvironmentError(EnvironmentError::Kind::Device, "NCCL has no all-to-all in place");
              for (std::int64_t j = 0; j < n; ++j) {
                nccl_check(
                    ncclSend(in + j * piece, count_of(op.bytes.value, op.dtype, n), type_of(op.dtype), static_cast<int>(j), c, m.stream),
                    "send", c);
                nccl_check(
                    ncclRecv(out + j * piece, count_of(op.bytes.value, op.dtype, n), type_of(op.dtype), static_cast<int>(j), c, m.stream),
                    "receive", c);
              }
            },
            [&](const Send& op) { message(op.bytes, op.dtype, transfer.name, m, c); },
            [&](const Recv& op) { message(op.bytes, op.dtype, transfer.name, m, c); },
            [](const Compute&) { throw InternalError("a compute op is no communication"); },
            [](const Copy&) { throw InternalError("a copy is no communication"); },
            [](const HostWait&) { throw InternalError("a host wait is no communication"); },
        },
        body);
  }

  void message(Bytes bytes, DType type, const TransferName& name, const TransportMember& m, ncclComm_t c) const {
    const std::size_t count = count_of(bytes.value, type, 1);
    if (m.member == 0) {
      nccl_check(ncclSend(dense(m.memory.in, bytes.value, "input"), count, type_of(type), static_cast<int>(name.receiver), c, m.stream), "send", c);
    } else {
      nccl_check(ncclRecv(dense(m.memory.out, bytes.value, "output"), count, type_of(type), static_cast<int>(name.sender), c, m.stream), "receive",
                 c);
    }
  }

  const NcclSetting setting_;
  std::vector<std::map<std::uint32_t, ncclComm_t>> comms_;  // [communicator][rank]
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<Transport> nccl_transport(const Schedule& schedule, NcclSetting setting) {
  return std::make_unique<NcclTransport>(schedule, std::move(setting));
}

}  // namespace steptwin
