// How data moves between the ranks of a communication op. Called once every member that this process runs has posted: puts the whole transfer
// into these members' streams so that each stream goes on when the data of all has moved. Never blocks the host on the device.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "exec/comm/local.h"
#include "exec/cpu/step_machine.h"
#include "exec/cuda/handles.h"
#include "schedule/ir/schedule.h"

namespace steptwin {

class ProcessGroup;

struct TransportMember {
  RankId rank;
  std::uint32_t member = 0;  // as TransferEnd::member: its number on the op's communicator; of a message 0: the sender, 1: the receiver
  int device = 0;
  StreamHandle stream = nullptr;
  MemberMemory memory;
};

struct Transfer {
  const OpBody* body = nullptr;          // of one member
  TransferName name;
  std::vector<TransportMember> members;  // those of this process, ascending by member number
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Transfers that go on together: one, or those of a group (one rank's, where several processes run). Throws EnvironmentError (Device).
  virtual void move(const std::vector<Transfer>& transfers) = 0;
  virtual std::string name() const = 0;
  // Ends what is in flight without waiting for it; from any thread. Afterwards nothing can be moved.
  virtual void abort() {}
  virtual bool can_hang() const { return false; }  // what is in flight may wait for another process for ever
};

// Ranks of one process that share a device: copies, a reduction kernel (members ascending, fp32, one rounding), events. The bits of
// exec/comm/local.
std::unique_ptr<Transport> local_transport();

// One rank per GPU: NCCL. This process issues for the ranks in device_of_rank; the others belong to other processes of the group, and the ids
// of communicators go through its store.
struct NcclSetting {
  std::map<std::uint32_t, int> device_of_rank;  // of this process
  ProcessGroup* group = nullptr;                // null: all ranks are here
  std::chrono::milliseconds limit{120'000};     // for a communicator to come up, or to launch
  std::function<void()> look;                   // called while waiting: throws when the run is over
};
// Throws EnvironmentError (Device) when ranks share a GPU that this NCCL refuses to share, or a communicator cannot be made.
std::unique_ptr<Transport> nccl_transport(const Schedule& schedule, NcclSetting setting);

}  // namespace steptwin
