#include "schedule/ir/op.h"

namespace steptwin {

Flops Work::flops() const {
  Flops sum;
  for (const Kernel& k : kernels) sum += k.flops;
  return sum;
}

Bytes Work::bytes() const {
  Bytes sum;
  for (const Kernel& k : kernels) sum += k.bytes;
  return sum;
}

const char* kind_name(const OpBody& body) {
  return std::visit(Overloaded{
                        [](const Compute&) { return "compute"; },
                        [](const AllGather&) { return "gather"; },
                        [](const ReduceScatter&) { return "reduce_scatter"; },
                        [](const AllReduce&) { return "all_reduce"; },
                        [](const Broadcast&) { return "broadcast"; },
                        [](const AllToAll&) { return "all_to_all"; },
                        [](const Send&) { return "send"; },
                        [](const Recv&) { return "recv"; },
                        [](const Copy&) { return "copy"; },
                        [](const HostWait&) { return "host_wait"; },
                    },
                    body);
}

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::None: return "";
    case Phase::Forward: return "F";
    case Phase::Backward: return "B";
    case Phase::InputGrad: return "I";
    case Phase::WeightGrad: return "W";
    case Phase::Recompute: return "R";
    case Phase::Update: return "U";
  }
  return "";
}

CommId comm_of(const OpBody& body) {
  return std::visit(Overloaded{
                        [](const Compute&) { return CommId(); },
                        [](const Copy&) { return CommId(); },
                        [](const HostWait&) { return CommId(); },
                        [](const auto& communication) { return communication.comm; },
                    },
                    body);
}

Bytes bytes_of(const OpBody& body) {
  return std::visit(Overloaded{
                        [](const Compute&) { return Bytes(); },
                        [](const HostWait&) { return Bytes(); },
                        [](const auto& transfer) { return transfer.bytes; },
                    },
                    body);
}

bool is_point_to_point(const OpBody& body) { return std::holds_alternative<Send>(body) || std::holds_alternative<Recv>(body); }

bool is_collective(const OpBody& body) { return comm_of(body).valid() && !is_point_to_point(body); }

}  // namespace steptwin
