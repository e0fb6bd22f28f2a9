// How DeepSpeed reduces the gradients of ZeRO-3: they wait in a bucket in the order in which they become final; one that no longer fits
// into `elements` first sends off those that wait, and so does the end of every backward. A bucket is one call: a group of reduce-scatters
// (sum), one for each gradient. The step's first sum of a gradient is its shard, later ones are added to it on the same lane. So a gradient
// larger than the bucket travels alone, and a waiting one keeps its memory until it is reduced.
// The host is at most two unfinished calls ahead; at the end of a backward it waits for the last one.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "schedule/mechanisms/event_backlog.h"
#include "schedule/mechanisms/zero_storage.h"

namespace steptwin {

class GradientBuckets {
 public:
  struct Gradient {
    const ZeroGroup* group = nullptr;  // outlives the buckets
    std::int64_t elements = 0;         // without padding
    BufferId whole;
    Label label;
  };

  // Calls run on `lane` and communicator `comm`.
  GradientBuckets(CommId comm, LaneId lane, std::int64_t elements) : comm_(comm), lane_(lane), size_(elements) {}

  void add(const Gradient& gradient, ProgramContext& program);
  void finish_backward(ProgramContext& program);

 private:
  struct Sum {
    const ZeroGroup* group = nullptr;
    BufferId received;  // the gradient's shard, or what is added to it
  };

  void reduce(ProgramContext& program);
  Sum receive(const Gradient& gradient, ProgramContext& program);
  OpId add_to_shard(const Sum& sum, const Label& label, ProgramContext& program) const;

  CommId comm_;
  LaneId lane_;
  std::int64_t size_, waiting_elements_ = 0;
  std::vector<Gradient> waiting_;
  std::unordered_set<std::uint32_t> summed_;  // shards that hold a sum of this step
  EventBacklog calls_;
};

}  // namespace steptwin
