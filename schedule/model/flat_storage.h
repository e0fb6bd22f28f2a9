// How the parameters of a unit (a block, or one stand-alone parameter) lie in flat groups that are cut into equal shards: BMTrain's storage
// (specs/bmtrain.md 2). One function for both sides: sizes that are simulated are the sizes that are executed.
//
// Parameters are walked in order into groups; the key is the type, whether they require a gradient, and a group name. Inside a group every
// parameter starts at a multiple of 512 bytes; a shard is ceil(total / ranks) elements, so shards are not aligned to parameter borders: one
// parameter may lie on several ranks, and a rank may hold none of it. Everything is counted in elements of the group's type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/base/dtype.h"

namespace steptwin {

struct StoredParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::Bf16;
  bool requires_grad = true;
  std::string group = {};  // a name that keeps it apart from others, for example of a communicator
  std::int64_t elements() const;
};

struct FlatGroup {
  std::string key;  // "bf16_grad", "fp32_nograd_g_tp"
  DType dtype = DType::Bf16;
  bool requires_grad = true;
  std::vector<StoredParameter> parameters;
  std::vector<std::int64_t> offsets;  // [parameter]
  std::int64_t total = 0;             // end of the last parameter, rounded up to the alignment
};

// Groups in the order of their first parameter.
std::vector<FlatGroup> flat_groups(const std::vector<StoredParameter>& parameters);
// A parameter outside a block: a group of its own without alignment, so that its shard is ceil(elements / ranks).
FlatGroup stand_alone_group(const StoredParameter& parameter);

// The cut of a group of `total` elements. 0 <= gathered - total < ranks: the rest is padding, on the last rank or ranks.
struct Sharding {
  std::int64_t ranks = 1;
  std::int64_t partition = 0;  // elements a rank holds
  std::int64_t gathered = 0;   // partition * ranks
};
Sharding sharding_of(const FlatGroup& group, std::int64_t ranks);

}  // namespace steptwin
