// The compute op of a segment visit and its operands. The order of the accesses is the op's signature; executors rely on it.
//
// x input, y output of the segment; dx, dy their gradients; P parameters, G their gradients; S saved tensors (the model's layout);
// scale the loss scale, the first of {scale, good steps, skipped steps}, fp32; random the
// state that F draws its dropout masks from and R draws them again (host memory; with dropout under recompute); T the embedding's token table and dT its gradient, when a tied head shares it on its rank (tensor part of the embedding's buffers);
// K what a weight gradient needs behind its input gradient. [ ] = only when it exists. G and dT: `write` by the step's first
// contribution, `update` later. S and y of an R visit have category recompute.
//
//   segment    phase  operands
//   embed      F      read tokens[piece mb/m], read P, [write S], write y, [write workspace]
//   attn, mlp  F      read x, read P, [write S], write y, [write random], [write workspace]
//   attn, mlp  R      read x, read P, [read random], [write S], write y, [write workspace]
//   head       F      read x, read targets[piece mb/m], read P, [read T], [write S], write loss, [write workspace]
//   embed      B, W   read dy, read tokens[piece mb/m], [read S], G, [write workspace]
//   attn, mlp  B      read dy, [read S], [read x], read P, write dx, G, [write workspace]
//   head       B      read targets[piece mb/m], [read S], [read x], read P, [read T], [read scale], write dx, G, [dT], [write workspace]
//   attn, mlp  I      read dy, [read S], [read x], read P, write dx, write K, [write workspace]
//   head       I      read targets[piece mb/m], [read S], [read x], read P, [read T], [read scale], write dx, write K, [write workspace]
//   attn, mlp  W      read K, G
//   head       W      read K, G, [dT]
// Form bmtrain: mb of embed and head counts batches; x of a stage's first layer and dy of its last one may be a tensor part of the gathered
// hidden state (batch_pipeline.cpp).
// Under ZeRO P and G are one access per flat group that holds a parameter of the segment (the group's tensors of other segments are not
// touched), T and dT tensor 0 of the table's own group, and every G and dT is an `update`: gradients start as zeros (zero.cpp). In form
// deepspeed only where they are padded, a group is one parameter, and embed's B ends with [hold P] (deepspeed_zero.cpp).
// G is one access to the whole buffer; of an embedding whose table is shared on its rank it is one per tensor, in layout order.
// K holds copies of the layer inputs that the weight gradient needs, so while an I runs they are counted twice (in S and in K); from the
// end of the I on the count is exact. The embedding has no I. x is the segment's kept input (SegmentCost::keeps_input). Recomputed x of an MLP is the R visit's y.
//   Update (optimizer.cpp)   read G, update P, [update master], update m, update v; under ZeRO this rank's shards of them
//   fill (zero.cpp)          write G
//   accumulate (zero.cpp)    read gradient shard, update G[shard]; gradient_buckets.cpp: read what was reduced, update gradient shard
//   check (overflow.cpp)     read G, write or update flag
//   decide (overflow.cpp)    read flag, write ok
//   inspect (hidden_states.cpp)   read stack of hidden states, update figures of its layers
//   norm (gradient_scale.cpp)     read G or a part of it, [read scale], update norm[distinct or copied]
//   factor (gradient_scale.cpp)   [read norm], [read scale], write factor
//   rescale (gradient_scale.cpp)  read ok, update scale
//   scale (gradient_scale.cpp)    read factor, update G
#pragma once

#include "schedule/mechanisms/program.h"

namespace steptwin {

// Emits the op of a Segment visit on the compute lane and sets program.last_compute.
void emit_segment(const Visit& visit, ProgramContext& program);

}  // namespace steptwin
