// Alpha-beta times of communication on a two-level network (specs/cost_models.md 1-3). Seconds; + - * / and sqrt only.
//
// n members on N nodes, at most k on one; S the op's bytes (nccl-tests sense, see op.h); alpha latency of a step, B bandwidth of a
// rank in one direction at its efficiency; links: intra (inside a node), inter (between nodes, one NIC a device).
//   ring     N = 1: B = B_intra.  N > 1: one flat ring whose channels are rail-aligned, so that all NICs of a node's members carry it:
//            B = min(B_intra, k B_inter), or B_inter when k = 1. Latency of one pass: (N-1) alpha_inter + (n-N) alpha_intra.
//     all-gather, reduce-scatter   pass + (n-1)/n S/B
//     all-reduce                   2 pass + 2 (n-1)/n S/B
//   broadcast    pipelined chain over the same ring, C pieces: (n-2+C)(alpha + S/(C B)), alpha of the slowest hop; the best
//                C = sqrt((n-2) S/(B alpha)), a whole number of at least 1; alpha = 0: S/B.
//   all-to-all   pairwise: (k-1) alpha_intra + (n-k) alpha_inter + S (k-1)/n / B_intra + S (n-k)/n / B_inter.
//   message      alpha + S/B of the link between the two: intra when both lie on one node.
// One member: 0. Transfers that run at the same time do not slow each other here; shared NICs are the engine's business.
#pragma once

#include "schedule/ir/op.h"
#include "schedule/machine/machine.h"
#include "sim/cost/cost_model.h"

namespace steptwin {

double communication_seconds(const Machine& machine, const OpBody& body, const CommShape& shape);

}  // namespace steptwin
