#include "traces/op_name.h"

namespace steptwin {
namespace {

std::string compute_name(const Schedule& schedule, const Op& op) {
  const std::string segment(schedule.name(op.label.segment));
  if (op.label.phase == Phase::Update || op.label.phase == Phase::None) return segment.empty() ? "compute" : segment;
  return name_of(op.label.phase);
}

}  // namespace

std::string short_name(const Schedule& schedule, const Op& op) {
  std::string name = std::visit(Overloaded{
                                    [&](const Compute&) { return compute_name(schedule, op); },
                                    [](const AllGather&) { return std::string("AG"); },
                                    [](const ReduceScatter&) { return std::string("RS"); },
                                    [](const AllReduce&) { return std::string("AR"); },
                                    [](const Broadcast&) { return std::string("BC"); },
                                    [](const AllToAll&) { return std::string("A2A"); },
                                    [](const Send&) { return std::string("send"); },
                                    [](const Recv&) { return std::string("recv"); },
                                    [](const Copy&) { return std::string("copy"); },
                                    [](const HostWait&) { return std::string("wait"); },
                                },
                                op.body);
  if (op.label.micro_batch >= 0) name += " " + std::to_string(op.label.micro_batch);
  return name;
}

}  // namespace steptwin
