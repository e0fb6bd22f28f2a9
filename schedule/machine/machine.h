// Machine: devices, memories, links, issuing threads with capacities and rates. Analytic defaults come from
// scenarios/machines/*.json, each figure with its source; calibration writes the same kind of file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schedule/base/dtype.h"
#include "schedule/base/units.h"
#include "schedule/machine/measured.h"

namespace steptwin {

// Step curve: efficiency of the entry with the largest `at_least` that does not exceed the size; entries ascending.
// In (0, 1]; for attention up to 2, because kernels count the masked half of the scores, which a device skips.
struct EfficiencyCurve {
  std::vector<std::pair<double, double>> steps;  // (at_least, efficiency); empty = 1
  double at(double size) const;
};

struct Device {
  std::string name;
  Bytes memory;                                  // capacity that a rank may use
  BytesPerSecond memory_bandwidth;
  std::map<DType, FlopsPerSecond> matrix_peak;   // dense, per data type
  FlopsPerSecond vector_peak;                    // fp32 outside the matrix units
  EfficiencyCurve matrix_efficiency;             // over flops of the kernel
  EfficiencyCurve attention_efficiency;          // over flops of the kernel
  EfficiencyCurve memory_efficiency;             // over bytes of the kernel
};

// alpha + bytes/beta. bandwidth is per rank and direction, already at its achievable efficiency when `efficiency` is 1.
struct Link {
  BytesPerSecond bandwidth;
  double efficiency = 1;
  Duration latency{0};   // alpha: per step of a collective, per message
};

enum class SlotScope : std::uint8_t { Compute, Everything };  // Everything: one thread computes, copies and transfers

struct Host {
  Duration kernel_launch{0};     // issue cost per kernel of a compute op
  Duration transfer_launch{0};   // issue cost of a communication op, copy, or group
  int run_ahead_micro_batches = 0;  // compiled into HostWaits: the host may run this many micro-batches ahead of the device; 0 = no limit
  int ranks_per_thread = 1;      // ranks that share one issuing thread; the reader refuses more than 1 until the simulator takes turns
  int compute_slots = 0;         // ops of one node that run at a time, of those that `slot_scope` names; 0 = one per rank
  SlotScope slot_scope = SlotScope::Compute;
  double compute_contention = 0;  // c: k compute ops of one node that overlap each run at 1/(1 + c (k - 1)) of their speed alone. Not with
                                  // compute_slots. Ranks that share a GPU: its power and memory bandwidth; 1: they share all of it
  Duration turnaround{0};        // from taking a slot to the start of a compute op or copy; the duration of a transfer includes it
  Bytes pinned_memory;           // per node
  Bytes pageable_memory;         // per node
  // What the cores of one rank stream through main memory, reads and writes together: compute on host lanes and copies inside the host. Unset:
  // what one thread's memcpy moves (sim/cost/host_rate.h).
  std::optional<BytesPerSecond> memory_bandwidth;
};

struct Disk {
  BytesPerSecond read, write;
  Bytes capacity;
};

enum class LinkSharing { None, Fair };  // Fair: concurrent transfers of a rank's NIC share it (max-min); forces the event agenda and no folding

struct Machine {
  std::string name;
  Device device;
  int devices_per_node = 8;      // where ranks share a device: ranks per node
  int ranks_per_device = 1;      // ranks r with the same r / ranks_per_device share its memory
  std::optional<int> nodes;      // unset: as many as the mesh needs
  Link intra_node;               // between devices of one node
  Link inter_node;               // between nodes, per device (one NIC each)
  Link copy_up, copy_down;       // host to device, device to host
  LinkSharing sharing = LinkSharing::None;
  Host host;
  std::optional<Disk> disk;
  std::optional<MeasuredTables> measured;      // calibration: exact times before analytic ones
  std::map<std::string, std::string> sources;  // JSON pointer of a figure -> where it comes from

  int node_of(std::uint32_t rank) const { return static_cast<int>(rank) / devices_per_node; }
};

// Reads a machine profile. Throws InputError with file:line:column for every problem; EnvironmentError when unreadable.
Machine load_machine(const std::string& path);
// Path of a preset's profile: NAME.json in the machines folder of the data directory (see base/data_dir.h); InputError with the nearest name.
std::string machine_preset_path(const std::string& preset);
std::vector<std::string> machine_presets();

}  // namespace steptwin
