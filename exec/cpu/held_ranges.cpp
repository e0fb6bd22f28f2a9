#include "exec/cpu/held_ranges.h"

namespace steptwin {

HeldRanges::HeldRanges(const Schedule& schedule, const Matching& matching) : schedule_(schedule), matching_(matching) {
  for (const Communicator& comm : schedule.communicators) comms_.push_back(expand(schedule.mesh, comm));
}

ByteRange HeldRanges::of(std::uint32_t rank, const Buffer& buffer, const Part& part) const {
  const RankId id = matching_.ranks[rank].rank;
  if (buffer.shard.valid()) return held_range(buffer, comms_[buffer.shard.value].member_of[id.value]);
  if (part.kind != Part::Kind::Shard) return byte_range(buffer, schedule_, part, 0, 1);
  const CommInstances& comm = comms_[part.a];
  const auto members = static_cast<std::uint32_t>(comm.members[comm.instance_of[id.value]].size());
  return byte_range(buffer, schedule_, part, comm.member_of[id.value], members);
}

std::vector<RankId> HeldRanges::holders(std::uint32_t rank, const Buffer& buffer) const {
  const RankId id = matching_.ranks[rank].rank;
  if (!buffer.shard.valid()) return {id};
  const CommInstances& comm = comms_[buffer.shard.value];
  return comm.members[comm.instance_of[id.value]];
}

}  // namespace steptwin
