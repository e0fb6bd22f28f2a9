// How data moves between the ranks of a communication op. Called once every member has posted: puts the whole transfer into the members'
// streams so that each member's stream goes on when the data of all has moved. Never blocks the host on the device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/comm/local.h"
#include "exec/cuda/handles.h"
#include "schedule/ir/schedule.h"

namespace steptwin {

struct TransportMember {
  RankId rank;
  std::uint32_t member = 0;  // its number on the op's communicator
  int device = 0;
  StreamHandle stream = nullptr;
  MemberMemory memory;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // `members` ascending by member number (message: sender, receiver). Throws EnvironmentError (Device).
  virtual void move(const OpBody& body, const std::vector<TransportMember>& members) = 0;
  virtual std::string name() const = 0;
  virtual void abort() {}  // ends what is in flight without waiting for it
};

// Ranks of one process that share a device: copies, a reduction kernel (members ascending, fp32, one rounding), events. The bits of
// exec/comm/local.
std::unique_ptr<Transport> local_transport();
// One rank per GPU, this process issuing for all of them: NCCL, members of a transfer in one NCCL group.
// Throws EnvironmentError (Device) when ranks share a GPU that this NCCL refuses to share, or the communicator cannot be made.
std::unique_ptr<Transport> nccl_transport(const Schedule& schedule, const std::vector<int>& device_of_rank);

}  // namespace steptwin
