// The text form of a schedule: one op a line, read and written by people and tests.
//
// Promise: parse_schedule(print_schedule(s)) == s for every schedule that verify finds structurally sound (no RANGE error).
// Both directions are linear in the text.
//
// A line is one declaration or op. '#' starts a comment; blank lines, indentation and the number of blanks mean nothing.
// A name is plain (letter or _, then letters, digits and _ . : / @ -) or quoted: "any text", with \" \\ \n \t \xHH. Names
// that are clause words (lane, after, read, ...) must be quoted; so must segments that look like a label (F, L3, mb0).
// SIZE: 96, 96B, 4KiB, 6MiB, 2GiB, 1TiB.  TIME: 250ns, 3us, 1.5ms, 2s.  LIST: 0,3,5-7 (no blanks).
// DTYPE: fp32 bf16 fp16 int64 int32 uint8.
//
//   mesh {AXIS SIZE}                         first line; slowest axis first:  mesh pp 4 dp 2
//   names {NAME}                             the table of interned names; only where it is not the order of first use below
//   constant NAME VALUE                      a figure for executors: constant dropout 0.1
//   comm NAME axes AXIS {AXIS} [groups {LIST} {LIST}]     comm emb axes pp groups {0,3}
//   layout NAME                              l<own index> = no name
//     tensor NAME DTYPE SHAPE at SIZE        SHAPE: 768x3072, or scalar
//   work w<index>                            handles w0, w1, ... in order; then its kernels
//     matmul|attention|stream DTYPE [batch N] [m N] [n N] [k N] [flops N] [bytes SIZE]
//                                            flops left out: 2*batch*m*n*k for matmul, else 0
//   program NAME ranks RANKS [stages LIST]   RANKS: all | none | LIST | AXIS=LIST {AXIS=LIST}, a box; other axes in full
//     lane NAME ENGINE [priority high]       ENGINE: compute copy_up copy_down network storage host
//     buffer HANDLE [named NAME] [CATEGORY] [SPACE] [SIZE] [layout NAME] [shard COMM] [resident | lazy]
//                                            b<own index> = no name, or the name after `named` (needed when names repeat).
//                                            Left out: other, device, the extent of the layout (0 without one; of a shard, one member's share of it)
//     N KIND clauses                         N counts up by one from 0 in every program
// Everything is declared before it is used; lanes and buffers belong to the program above them.
//
// KIND: compute gather reduce_scatter all_reduce broadcast all_to_all send recv copy host_wait. Clauses, in the printed order
// (any order is read, each once, except accesses):
//   on COMM                                  communication ops
//   to PEER | from PEER | root PEER          send | recv | broadcast; 1 = member 1, +1 / -1 = along the ring from oneself
//   for N                                    host_wait: the op waited for
//   [PHASE] [SEGMENT] [L<layer>] [c<chunk>] [mb<micro-batch>] [s<slice>]     the label; PHASE: F B I W R U
//   work w5                                  the kernels of a compute op with one part that carries the op's label
//   + PART                                   a further part: PHASE SEGMENT L mb, then work:  + B attn L3 mb1 work w9
//   of PART {+ PART}                         all parts, when the first one differs from the label
//   max                                      all_reduce with maximum instead of sum
//   bytes SIZE, dtype DTYPE [to DTYPE]       only where they differ from what the accesses imply (part_size.h, implied_payload);
//                                            without accesses: 0 bytes, bf16.  `to`: copy with a cast
//   read|write|update|hold BUFFER[PART] ...  operands in order; PART: [tensor NAME] [tensor 3] [shard COMM] [piece 1/4]
//   lane NAME                                may be left out when one lane of the fitting engine exists (compute for compute
//                                            ops, network for communication)
//   after LIST                               dependencies
//   group N                                  group number
//   when BUFFER                              guard
//   time TIME                                the op states its duration
#pragma once

#include <string>
#include <string_view>

#include "schedule/ir/schedule.h"

namespace steptwin {

std::string print_schedule(const Schedule& schedule);
// One op as its line (without newline and indentation); numbers count from the program's first op. Never fails: what is out
// of range prints as ?<number>.
std::string print_op(const Schedule& schedule, OpId op);
// Throws InputError with every problem found, at most one a line (file:line:column). Codes: SYNTAX, UNKNOWN-NAME, DUP-NAME,
// NUMBER (a value out of bounds), ORDER (op numbers, a line in the wrong place).
// A schedule that parses may still be unsound: verify() judges that.
Schedule parse_schedule(std::string_view text, const std::string& file);

}  // namespace steptwin
