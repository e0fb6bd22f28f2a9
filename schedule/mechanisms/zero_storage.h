// What ZeRO shards on one pipeline rank, unit by unit: a unit is gathered and reduced as one. A layer is a unit, a block of flat groups
// (schedule/model/flat_storage.h); of the embedding and the head every parameter is a group of its own, BMTrain's stand-alone parameters.
//
// Resident buffers of a group, by level; shards are along the unit's communicator, the states always are shards:
//   1  whole parameters,          whole gradients (reduced in place)
//   2  whole parameters,          gradient shard
//   3  parameter shard,           gradient shard
// Gradients and states have the group's element offsets, in their own type.
#pragma once

#include <array>

#include "schedule/mechanisms/program.h"
#include "schedule/model/flat_storage.h"

namespace steptwin {

//   frozen: the parameter alone, whole at levels 1 and 2
struct ZeroGroup {
  StoredGroup stored;
  std::array<bool, 2> of_segment{};  // of the unit, which have parameters in it
  Sharding cut;
  LayoutId param_layout, gradient_layout;  // of the whole group
};

struct ZeroUnit {
  std::int32_t chunk = 0, first_segment = 0, segments = 1;
  std::int32_t layer = -1;  // -1: stand-alone
  std::vector<ZeroGroup> groups;   // all that it is made of
  std::vector<ZeroGroup> trained;  // those of them that have gradients
  std::int32_t stepped_with = -1;  // the segment whose Update visit steps them: of those that are trained the first, whose gradients become
                                   // final last
  bool stand_alone() const { return layer < 0; }
};

// Over which ranks the two sorts of units are sharded.
struct ZeroComms {
  CommId blocks, ends;
};

// The groups of a communicator over `ranks` that are shards of one thing: `size` neighbours each; none when that is all of them.
std::vector<std::vector<std::uint32_t>> shard_groups(std::uint32_t ranks, std::uint32_t size);

// Form deepspeed: every segment is a unit (chunk by chunk, in order), every parameter a group of its own. One of at most `threshold`
// elements is kept whole on every rank, its gradient and states are shards all the same: param_part is then this rank's share.
std::vector<ZeroUnit> make_parameter_units(ProgramContext& program, CommId comm, std::int64_t threshold);

// Makes the resident buffers and puts the trained groups into the homes of the segments they are stepped with.
std::vector<ZeroUnit> make_zero_units(ProgramContext& program, const ZeroComms& comms);

}  // namespace steptwin
