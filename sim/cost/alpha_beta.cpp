#include "sim/cost/alpha_beta.h"

#include <algorithm>
#include <cmath>

#include "schedule/base/error.h"
#include "sim/cost/rates.h"

namespace steptwin {
namespace {

double bandwidth(const Link& link, const char* figure) {
  return needed_rate(link.bandwidth.value * link.efficiency, figure, "a communication op");
}
double intra_bandwidth(const Machine& machine) { return bandwidth(machine.intra_node, "bandwidth inside a node"); }
double inter_bandwidth(const Machine& machine) { return bandwidth(machine.inter_node, "bandwidth between nodes"); }

// A ring or chain through all members: its bottleneck, and the latencies along it.
struct Ring {
  double members = 1;
  double bandwidth = 0;
  double pass = 0;         // sum of the n-1 steps of one pass
  double slowest_hop = 0;
};

Ring ring(const Machine& machine, const CommShape& shape) {
  const double n = shape.members, nodes = shape.nodes, k = shape.members_per_node;
  const double intra = seconds(machine.intra_node.latency), inter = seconds(machine.inter_node.latency);
  if (shape.nodes <= 1) return {n, intra_bandwidth(machine), (n - 1) * intra, intra};
  const double nics = k * inter_bandwidth(machine);
  const bool one_per_node = shape.members_per_node <= 1;
  return {n, one_per_node ? nics : std::min(intra_bandwidth(machine), nics), (nodes - 1) * inter + (n - nodes) * intra,
          one_per_node ? inter : std::max(intra, inter)};
}

double ring_pass(const Machine& machine, Bytes bytes, const CommShape& shape) {
  const Ring r = ring(machine, shape);
  return r.pass + (r.members - 1) / r.members * real(bytes) / r.bandwidth;
}

double chain_broadcast(const Machine& machine, Bytes bytes, const CommShape& shape) {
  const Ring r = ring(machine, shape);
  const double whole = real(bytes) / r.bandwidth;
  if (!(r.slowest_hop > 0)) return whole;
  const double pieces = std::max(1.0, std::floor(std::sqrt((r.members - 2) * whole / r.slowest_hop)));
  return (r.members - 2 + pieces) * (r.slowest_hop + whole / pieces);
}

double pairwise(const Machine& machine, Bytes bytes, const CommShape& shape) {
  const double n = shape.members, k = shape.nodes <= 1 ? n : shape.members_per_node, piece = real(bytes) / n;
  double time = 0;
  if (k > 1) time += (k - 1) * (seconds(machine.intra_node.latency) + piece / intra_bandwidth(machine));
  if (n > k) time += (n - k) * (seconds(machine.inter_node.latency) + piece / inter_bandwidth(machine));
  return time;
}

double message(const Machine& machine, Bytes bytes, const CommShape& shape) {
  if (shape.nodes <= 1) return seconds(machine.intra_node.latency) + real(bytes) / intra_bandwidth(machine);
  return seconds(machine.inter_node.latency) + real(bytes) / inter_bandwidth(machine);
}

}  // namespace

double communication_seconds(const Machine& machine, const OpBody& body, const CommShape& shape) {
  if (shape.members <= 1) return 0;
  return std::visit(Overloaded{
                        [&](const AllGather& op) { return ring_pass(machine, op.bytes, shape); },
                        [&](const ReduceScatter& op) { return ring_pass(machine, op.bytes, shape); },
                        [&](const AllReduce& op) { return 2 * ring_pass(machine, op.bytes, shape); },
                        [&](const Broadcast& op) { return chain_broadcast(machine, op.bytes, shape); },
                        [&](const AllToAll& op) { return pairwise(machine, op.bytes, shape); },
                        [&](const Send& op) { return message(machine, op.bytes, shape); },
                        [&](const Recv& op) { return message(machine, op.bytes, shape); },
                        [](const Compute&) -> double { throw InternalError("communication_seconds: a compute op"); },
                        [](const Copy&) -> double { throw InternalError("communication_seconds: a copy"); },
                        [](const HostWait&) -> double { throw InternalError("communication_seconds: a host wait"); },
                    },
                    body);
}

}  // namespace steptwin
