// Which bytes of its layout a buffer, or a part of it, holds on a rank of the run.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/ir/matching.h"

namespace steptwin {

class HeldRanges {
 public:
  HeldRanges(const Schedule& schedule, const Matching& matching);
  // part: Whole or Shard; a shard buffer is asked as a whole.
  ByteRange of(std::uint32_t rank, const Buffer& buffer, const Part& part) const;
  // The ranks that together hold what a buffer's layout describes.
  std::vector<RankId> holders(std::uint32_t rank, const Buffer& buffer) const;

 private:
  const Schedule& schedule_;
  const Matching& matching_;
  std::vector<CommInstances> comms_;
};

}  // namespace steptwin
