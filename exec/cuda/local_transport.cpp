// Per transfer: every member records `ready` on its stream and waits for the others'; does its part; records `done` and waits for the
// others'. So it starts when the last member is ready, and no one goes on while its memory is read or written by another.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "exec/comm/members.h"
#include "exec/cuda/cuda_check.h"
#include "exec/cuda/kernels.h"
#include "exec/cuda/transport.h"
#include "schedule/base/error.h"

namespace steptwin {
namespace {

using Members = std::vector<TransportMember>;

void copy(const FlatView& from, std::int64_t from_at, const FlatView& to, std::int64_t to_at, std::int64_t bytes, cudaStream_t stream) {
  each_stretch(from, from_at, to, to_at, bytes, [stream](std::byte* target, const std::byte* source, std::size_t size) {
    cuda_check(cudaMemcpyAsync(target, source, size, cudaMemcpyDefault, stream), "copy between ranks");
  });
}

class LocalTransport final : public Transport {
 public:
  ~LocalTransport() override {
    for (const auto& [device, events] : events_)
      for (cudaEvent_t event : events) cudaEventDestroy(event);
  }
  std::string name() const override { return "local"; }

  void move(const std::vector<Transfer>& transfers) override {
    for (const Transfer& transfer : transfers) move(*transfer.body, transfer.members);
  }

 private:
  void move(const OpBody& body, const Members& members) {
    const bool nothing =
        std::all_of(members.begin(), members.end(), [](const TransportMember& m) { return m.memory.in.empty() && m.memory.out.empty(); });
    meet(members);
    if (nothing) return;
    std::visit(Overloaded{
                   [&](const AllReduce& op) { all_reduce(op, members); },
                   [&](const ReduceScatter& op) { reduce_scatter(op, members); },
                   [&](const AllGather& op) { all_gather(op, members); },
                   [&](const Broadcast& op) { broadcast(op, members); },
                   [&](const AllToAll& op) { all_to_all(op, members); },
                   [&](const Send& op) { message(op.bytes, members); },
                   [&](const Recv& op) { message(op.bytes, members); },
                   [](const Compute&) { throw InternalError("a compute op is no communication"); },
                   [](const Copy&) { throw InternalError("a copy is no communication"); },
                   [](const HostWait&) { throw InternalError("a host wait is no communication"); },
               },
               body);
    meet(members);
  }

  // A barrier of the members' streams.
  void meet(const Members& members) {
    if (members.size() < 2) return;
    std::vector<cudaEvent_t> arrived;
    for (const TransportMember& member : members) {
      arrived.push_back(next_event(member.device));
      cuda_check(cudaEventRecord(arrived.back(), member.stream), "record an event");
    }
    for (std::size_t i = 0; i < members.size(); ++i)
      for (std::size_t j = 0; j < members.size(); ++j)
        if (i != j) cuda_check(cudaStreamWaitEvent(members[i].stream, arrived[j], 0), "wait for an event");
  }

  // Waits capture the record made before them, so a few events in turn do; enough that none is recorded anew while a host-side reader is
  // behind.
  cudaEvent_t next_event(int device) {
    constexpr std::size_t kEvents = 256;
    std::vector<cudaEvent_t>& events = events_[device];
    if (events.size() < kEvents) {
      cuda_check(cudaSetDevice(device), "select the device");
      events.emplace_back();
      cuda_check(cudaEventCreateWithFlags(&events.back(), cudaEventDisableTiming), "create an event");
      return events.back();
    }
    return events[turn_++ % kEvents];
  }

  // Bytes [range) of every input combined into `outputs` at out_at, on one stream.
  void combine(const Members& members, ByteRange range, DType type, bool maximum, const std::vector<const FlatView*>& outputs,
               std::int64_t out_at, cudaStream_t stream) {
    while (range.size > 0) {
      kernels::CombineArguments a{};
      a.type = type, a.maximum = maximum;
      std::int64_t size = range.size;
      for (const TransportMember& member : members) {
        const FlatView::Stretch in = member.memory.in.from(range.first);
        a.from[a.inputs++] = in.data;
        size = std::min(size, in.bytes);
      }
      for (const FlatView* output : outputs) {
        const FlatView::Stretch out = output->from(out_at);
        a.to[a.outputs++] = out.data;
        size = std::min(size, out.bytes);
      }
      a.n = size / size_of(type);
      if (a.n == 0) throw EnvironmentError(EnvironmentError::Kind::Device, "a reduction would cut an element");
      kernels::combine(a, stream);
      size = a.n * size_of(type);
      range.first += size, range.size -= size, out_at += size;
    }
  }

  void check_members(const Members& members) {
    if (members.size() > kernels::kMaxMembers)
      throw EnvironmentError(EnvironmentError::Kind::Device,
                             fmt::format("{} ranks of one device in a reduction; {} at most", members.size(), kernels::kMaxMembers));
  }

  // Every member reduces its shard into all outputs.
  void all_reduce(const AllReduce& op, const Members& members) {
    check_members(members);
    const std::int64_t size = size_of(op.dtype), elements = op.bytes.value / size;
    std::vector<const FlatView*> outputs;
    for (std::size_t i = 0; i < members.size(); ++i) {
      need(members[i].memory.in, op.bytes.value, "input", i);
      need(members[i].memory.out, op.bytes.value, "output", i);
      outputs.push_back(&members[i].memory.out);
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      const ByteRange part = shard_of(elements, i, members.size());
      combine(members, {part.first * size, part.size * size}, op.dtype, op.reduction == AllReduce::Reduction::Max, outputs,
              part.first * size, members[i].stream);
    }
  }

  void reduce_scatter(const ReduceScatter& op, const Members& members) {
    check_members(members);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const ByteRange shard = shard_of(op.bytes.value, i, members.size());
      need(members[i].memory.in, op.bytes.value, "input", i);
      need(members[i].memory.out, shard.size, "output", i);
      combine(members, shard, op.dtype, false, {&members[i].memory.out}, 0, members[i].stream);
    }
  }

  void all_gather(const AllGather& op, const Members& members) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      need(members[i].memory.out, op.bytes.value, "output", i);
      for (std::size_t j = 0; j < members.size(); ++j) {
        const ByteRange shard = shard_of(op.bytes.value, j, members.size());
        need(members[j].memory.in, shard.size, "input", j);
        copy(members[j].memory.in, 0, members[i].memory.out, shard.first, shard.size, members[i].stream);
      }
    }
  }

  void broadcast(const Broadcast& op, const Members& members) {
    const std::uint32_t root = op.root.resolve(0, static_cast<std::uint32_t>(members.size()));
    need(members[root].memory.in, op.bytes.value, "input", root);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i == root) continue;
      need(members[i].memory.out, op.bytes.value, "output", i);
      copy(members[root].memory.in, 0, members[i].memory.out, 0, op.bytes.value, members[i].stream);
    }
  }

  // Piece j of member i becomes piece i of member j. What members send is set aside first: it may lie where they receive.
  void all_to_all(const AllToAll& op, const Members& members) {
    const auto n = static_cast<std::int64_t>(members.size());
    if (op.bytes.value % n != 0)
      throw EnvironmentError(EnvironmentError::Kind::Device,
                             fmt::format("an all-to-all of {} bytes does not split among {} members", op.bytes.value, n));
    const std::int64_t piece = op.bytes.value / n;
    std::vector<FlatView> aside;
    for (std::size_t i = 0; i < members.size(); ++i) {
      need(members[i].memory.in, op.bytes.value, "input", i);
      need(members[i].memory.out, op.bytes.value, "output", i);
      void* data = nullptr;
      cuda_check(cudaMallocAsync(&data, static_cast<std::size_t>(op.bytes.value), members[i].stream), "set an all-to-all aside");
      aside.push_back(FlatView({{static_cast<std::byte*>(data), op.bytes.value}}));
      copy(members[i].memory.in, 0, aside[i], 0, op.bytes.value, members[i].stream);
    }
    meet(members);
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t i = 0; i < n; ++i)
        copy(aside[static_cast<std::size_t>(i)], j * piece, members[static_cast<std::size_t>(j)].memory.out, i * piece, piece,
             members[static_cast<std::size_t>(j)].stream);
    meet(members);
    for (std::size_t i = 0; i < members.size(); ++i)
      cuda_check(cudaFreeAsync(aside[i].from(0).data, members[i].stream), "give back an all-to-all's memory");
  }

  void message(Bytes bytes, const Members& members) {
    need(members[0].memory.in, bytes.value, "input", 0);
    need(members[1].memory.out, bytes.value, "output", 1);
    copy(members[0].memory.in, 0, members[1].memory.out, 0, bytes.value, members[1].stream);
  }

  std::map<int, std::vector<cudaEvent_t>> events_;
  std::size_t turn_ = 0;
};

}  // namespace

std::unique_ptr<Transport> local_transport() { return std::make_unique<LocalTransport>(); }

}  // namespace steptwin
