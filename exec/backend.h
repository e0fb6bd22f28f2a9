// Backend: runs a schedule for real. The steptwin binary never links LibTorch: an execution module (a shared library that holds
// one backend) is loaded by exec/module.h after the thread and BLAS environment is set.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "schedule/ir/schedule.h"
#include "traces/trace.h"

namespace steptwin {

class KvStore;
class ProcessGroup;
struct Launch;

enum class ExecutionMode : std::uint8_t { Interp, Threads, Streams };
const char* name_of(ExecutionMode mode);  // "interp", "threads", "streams"
enum class TransportChoice : std::uint8_t { Auto, Local, Nccl };

// Where the times of a run come from. ThreadTime (Interp only): the processor time of the one thread, so that what others on the machine take
// does not count.
enum class StampClock : std::uint8_t { Wall, ThreadTime };

struct ExecuteOptions {
  // Interp: one thread runs all ranks cooperatively; Threads: a worker per rank and lane; Streams: a CUDA stream per rank and lane.
  ExecutionMode mode = ExecutionMode::Interp;
  StampClock clock = StampClock::Wall;
  std::uint32_t compute_slots = 1;             // Threads: compute ops of the process at a time
  TransportChoice transport = TransportChoice::Auto;  // CUDA. Local: ranks share a GPU; Nccl: a GPU each; Auto: Nccl where there are enough GPUs
  std::uint32_t partitions = 0;                // CUDA: parts of the GPU's multiprocessors, one per rank; 0: ranks share it freely
  std::uint32_t warm_up = 0;                   // repetitions before the measured ones
  std::uint32_t steps = 1;                     // measured repetitions (training steps)
  std::uint64_t seed = 1;                      // parameters and data order
  std::vector<std::uint8_t> text;              // training text, byte tokens; must hold at least one sequence + 1 bytes
  std::string text_name = "the training text";  // as messages call it
  // 0: none. A step that takes longer ends with an EnvironmentError that says where each rank stands, once the ops that run have returned.
  std::chrono::milliseconds deadline{0};
  const std::atomic<bool>* stop = nullptr;     // set by a signal handler
  std::string load;                            // checkpoint folder (exec/checkpoint.h) whose state the run starts from; empty: drawn from the seed
  std::string save;                            // where its state is saved after the last repetition; empty: nowhere
  // Several processes (exec/process_group.h): this one runs the rank of its own number, and process 0 gets the results of all: the others'
  // have the outcome alone. Null: this process runs all ranks.
  ProcessGroup* group = nullptr;
  bool keep_gradients = false;                 // fill ExecutionResult::gradients and parameters
  // Tests: called before the work of every op, guarded-off ones too, by the thread that does it (of a transfer: for each member in
  // turn); what it throws is that op's failure.
  std::function<void(RankId rank, OpId op, std::uint32_t step)> before_op;
};

// Parameters or their gradients as fp32 values, by name as in the model description.
using NamedValues = std::map<std::string, std::vector<float>>;

// One of several processes of a run: how its times came onto the axis of process 0's clock.
struct ProcessNote {
  std::uint32_t rank = 0;
  std::string host;
  std::int64_t clock_offset = 0, clock_uncertainty = 0;  // ns; offset at the beginning of the run
};

// Something a backend says of a run beside its trace: bytes outside the IR buffers, multiprocessors of a rank, host time per op.
struct RunFact {
  std::string name;   // "context_and_libraries_bytes"
  std::string label;  // for people, at most 14 characters
  std::string unit;   // "B", "ns", "1"
  double value = 0;
};

struct ExecutionResult {
  Trace trace;                    // kind "exec": every step's spans; allocated and active curves as measured by the allocator
  std::vector<double> losses;     // mean over all micro-batches and data-parallel ranks, per measured step
  // Of the run's first repetition, warm-up or not, as the optimizer takes them: summed over micro-batches and data-parallel ranks, of the mean
  // loss, without the loss scale, clipped. Of a tensor that several ranks hold, the one of the lowest.
  NamedValues gradients;
  // Of the first repetition, where hidden states are inspected: "layers.3.input" -> mean, deviation, least and largest value, of all
  // micro-batches of a step in sample order.
  NamedValues hidden;
  std::vector<NamedValues> parameters;  // [simulated rank] after the last repetition; the plain model has the frozen ones alone
  std::string environment_json;   // switches in force, library versions, thread counts
  // [space][simulated rank][local op]: IR bytes allocated between the op's allocations and drops, first measured step; from the allocator.
  std::array<std::vector<std::vector<std::int64_t>>, kSpaces> allocated;
  std::vector<RunFact> facts;       // of several processes: process 0's, as is the next
  std::int64_t workspace_peak = 0;  // op temporaries outside IR buffers, bytes
  std::vector<ProcessNote> processes;  // of several: each of them
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual std::string environment() const = 0;  // as ExecutionResult::environment_json, known before a run
  virtual ExecutionResult run(const Schedule& schedule, const ExecuteOptions& options) = 0;
  // What the device takes for things that are no op of a schedule, for calibration (default: nothing known).
  virtual std::vector<RunFact> probe() { return {}; }
  // The plain single-device model on the same parameters and data: LibTorch autograd, full batch, no schedule. Same result fields
  // (losses, gradients); reads shapes and dtypes from the schedule's layouts.
  virtual ExecutionResult run_plain(const Schedule& schedule, const ExecuteOptions& options) = 0;
  // The store of a run of several processes; who serves it opens it. Throws EnvironmentError (Device): the port is taken, nobody serves it
  // within the limit, or this backend knows no store (the default).
  virtual std::unique_ptr<KvStore> connect(const Launch& launch, std::chrono::milliseconds limit);
};

}  // namespace steptwin

// The one symbol of an execution module.
extern "C" steptwin::Backend* steptwin_backend();
