// NCCL, this process issuing for all its ranks: every transfer is one NCCL group that holds the calls of all members, so their order is the
// same everywhere and no member's launch waits behind another's kernel (specs/execution.md 3).
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "exec/cuda/cuda_check.h"
#include "exec/cuda/transport.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

using Members = std::vector<TransportMember>;

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

std::size_t count_of(std::int64_t bytes, DType type, std::int64_t parts) {
  if (bytes % (size_of(type) * parts) != 0)
    throw EnvironmentError(EnvironmentError::Kind::Device,
                           fmt::format("NCCL cannot split {} bytes of {} among {} ranks", bytes, name_of(type), parts),
                           "sizes that divide, or --transport local");
  return static_cast<std::size_t>(bytes / size_of(type) / parts);
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(const Schedule& schedule, const std::vector<int>& device_of_rank) {
    refuse_shared_devices(device_of_rank);
    std::set<std::uint32_t> used;
    for (const Op& op : schedule.ops)
      if (const CommId comm = comm_of(op.body); comm.valid()) used.insert(comm.value);
    comms_.resize(schedule.communicators.size());
    for (const std::uint32_t c : used) connect(c, expand(schedule.mesh, schedule.communicators[c]), device_of_rank);
  }
  ~NcclTransport() override {
    for (auto& by_rank : comms_)
      for (auto& [rank, comm] : by_rank) aborted_ ? ncclCommAbort(comm) : ncclCommDestroy(comm);
  }
  std::string name() const override { return "nccl"; }
  void abort() override { aborted_ = true; }

  void move(const OpBody& body, const Members& members) override {
    if (members.front().memory.in.empty() && members.front().memory.out.empty()) return;
    nccl_check(ncclGroupStart(), "open an NCCL group");
    try {
      for (std::size_t i = 0; i < members.size(); ++i) call(body, members, i);
    } catch (...) {
      ncclGroupEnd();
      throw;
    }
    nccl_check(ncclGroupEnd(), "launch an NCCL group");
    for (const TransportMember& member : members) settle(comm(body, member));
  }

 private:
  static void refuse_shared_devices(const std::vector<int>& device_of_rank) {
    int version = 0;
    ncclGetVersion(&version);
    for (std::size_t r = 0; r < device_of_rank.size(); ++r) {
      const auto other = std::find(device_of_rank.begin(), device_of_rank.begin() + static_cast<std::ptrdiff_t>(r), device_of_rank[r]);
      if (other == device_of_rank.begin() + static_cast<std::ptrdiff_t>(r)) continue;
      const char* allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
      if (version >= 23003 && allowed != nullptr && std::string_view(allowed) == "1") return;
      throw EnvironmentError(
          EnvironmentError::Kind::Device,
          fmt::format("ranks {} and {} share GPU {}, and NCCL {}.{}.{} takes one rank per GPU", other - device_of_rank.begin(), r,
                      device_of_rank[r], version / 10000, version / 100 % 100, version % 100),
          version >= 23003 ? "--transport local, or NCCL_MULTI_RANK_GPU_ENABLE=1 (experimental)"
                           : "--transport local, or as many GPUs as ranks");
    }
  }

  void connect(std::uint32_t c, const CommInstances& instances, const std::vector<int>& device_of_rank) {
    for (const auto& members : instances.members) {
      ncclUniqueId id{};
      nccl_check(ncclGetUniqueId(&id), "make an NCCL id");
      nccl_check(ncclGroupStart(), "open an NCCL group");
      for (std::size_t m = 0; m < members.size(); ++m) {
        cuda_check(cudaSetDevice(device_of_rank[members[m].value]), "select the device");
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        nccl_check(ncclCommInitRankConfig(&comms_[c][members[m].value], static_cast<int>(members.size()), id, static_cast<int>(m), &config),
                   "join an NCCL communicator");
      }
      nccl_check(ncclGroupEnd(), "make an NCCL communicator");
      for (const auto& member : members) settle(comms_[c][member.value]);
    }
  }

  // A nonblocking call is over when the communicator says so.
  static void settle(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    const auto begin = std::chrono::steady_clock::now();
    while (state == ncclInProgress) {
      nccl_check(ncclCommGetAsyncError(comm, &state), "ask an NCCL communicator", comm);
      if (state != ncclInProgress) break;
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(120))
        throw EnvironmentError(EnvironmentError::Kind::Device, "an NCCL communicator did not come up or launch within 120 s");
      std::this_thread::yield();
    }
    nccl_check(state, "use an NCCL communicator", comm);
  }

  ncclComm_t comm(const OpBody& body, const TransportMember& member) const { return comms_[comm_of(body).value].at(member.rank.value); }

  void call(const OpBody& body, const Members& members, std::size_t i) const {
    const TransportMember& m = members[i];
    const auto n = static_cast<std::int64_t>(members.size());
    const ncclComm_t c = comm(body, m);
    cuda_check(cudaSetDevice(m.device), "select the device");
    std::visit(
        Overloaded{
            [&](const AllReduce& op) {
              const auto sum = op.reduction == AllReduce::Reduction::Max ? ncclMax : ncclSum;
              nccl_check(ncclAllReduce(dense(m.memory.in, op.bytes.value, "input"), dense(m.memory.out, op.bytes.value, "output"),
                                       count_of(op.bytes.value, op.dtype, 1), type_of(op.dtype), sum, c, m.stream),
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
              const FlatView& own = i == root ? m.memory.in : m.memory.out;
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
            [&](const Send& op) { message(op.bytes, op.dtype, members, i, c); },
            [&](const Recv& op) { message(op.bytes, op.dtype, members, i, c); },
            [](const Compute&) { throw InternalError("a compute op is no communication"); },
            [](const Copy&) { throw InternalError("a copy is no communication"); },
            [](const HostWait&) { throw InternalError("a host wait is no communication"); },
        },
        body);
  }

  void message(Bytes bytes, DType type, const Members& members, std::size_t i, ncclComm_t c) const {
    const TransportMember& m = members[i];
    const int other = static_cast<int>(members[1 - i].member);
    const std::size_t count = count_of(bytes.value, type, 1);
    if (i == 0) {
      nccl_check(ncclSend(dense(m.memory.in, bytes.value, "input"), count, type_of(type), other, c, m.stream), "send", c);
    } else {
      nccl_check(ncclRecv(dense(m.memory.out, bytes.value, "output"), count, type_of(type), other, c, m.stream), "receive", c);
    }
  }

  std::vector<std::map<std::uint32_t, ncclComm_t>> comms_;  // [communicator][rank]
  bool aborted_ = false;
};

}  // namespace

std::unique_ptr<Transport> nccl_transport(const Schedule& schedule, const std::vector<int>& device_of_rank) {
  return std::make_unique<NcclTransport>(schedule, device_of_rank);
}

}  // namespace steptwin
