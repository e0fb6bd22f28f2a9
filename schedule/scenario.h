// Scenario: what the user asks for, parsed and checked, with the position of every value. Format 1 (DESIGN 8).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedule/base/diagnostic.h"
#include "schedule/ir/mesh.h"
#include "schedule/machine/given_cost.h"
#include "schedule/machine/machine.h"
#include "schedule/model/model.h"

namespace steptwin {

enum class P2pMode : std::uint8_t { Lanes, OneLane, Grouped, Compute, ComputeRecv };  // mechanisms/p2p.cpp

// Who has a batch. Stages: the first stage embeds, the last one has head and loss. Bmtrain: every rank of a pipeline has a batch of its
// own, embedding, head and loss; the layers alone are pipelined, over the pipeline's batches together (specs/bmtrain.md 9).
enum class PipelineForm : std::uint8_t { Stages, Bmtrain };
struct PipelineOptions {
  PipelineForm form = PipelineForm::Stages;
  std::int64_t micro_batches = 1;  // Bmtrain: pieces that the gathered batch is cut into
  bool operator==(const PipelineOptions&) const = default;
};

// run.task: what the schedule does. Save: a checkpoint save, beside the state of a step (save.h).
enum class RunTask : std::uint8_t { Step, Save };

enum class RecomputeMode : std::uint8_t { None, Full, Every, Sqrt };
enum class GradientReduce : std::uint8_t { Overlap, End };   // data-parallel all-reduce: bucketed in the last backward, or after it
enum class OptimizerKind : std::uint8_t { Adam, None };

// Sharding over the data-parallel ranks (specs/bmtrain.md 2-6; levels as in the ZeRO paper).
// How blocks follow each other. List: gather(i) before reduce-scatter(i+1); Block: one block after the other; Fsdp: reductions on a lane and
// a communicator of their own, as FSDP2's queues; Deepspeed: parameters one by one by the rules of DeepSpeed's coordinator (level 3).
enum class ZeroForm : std::uint8_t { List, Block, Fsdp, Deepspeed };
enum class ZeroReduce : std::uint8_t { MicroBatch, Step };  // of gradients: after every micro-batch's backward, or after the last one's
enum class ZeroEnter : std::uint8_t { MicroBatch, Step };  // of blocks at level 3: Step is BMTrain's 1F1B branch (mechanisms/zero.cpp)
enum class ZeroEnds : std::uint8_t { Sharded, Whole };      // embedding, final norm and head
// In elements, with DeepSpeed's names and defaults (specs/schedules.md 5.4). Form deepspeed alone.
struct DeepspeedOptions {
  std::int64_t prefetch_bucket_size = 50'000'000;
  std::int64_t max_live_parameters = 1'000'000'000;
  std::int64_t max_reuse_distance = 1'000'000'000;
  std::int64_t param_persistence_threshold = 100'000;
  std::int64_t reduce_bucket_size = 500'000'000;
  bool overlap_comm = true;
  bool operator==(const DeepspeedOptions&) const = default;
};
struct ZeroOptions {
  int level = 0;                   // 1: optimizer states; 2: and gradients; 3: and parameters
  ZeroForm form = ZeroForm::List;
  bool reshard = true;             // level 3: drop gathered parameters after forward; false = BMTrain's ZeRO-2
  std::int64_t prefetch = 1;       // blocks that the host lets run ahead; 0: no limit
  ZeroReduce reduce = ZeroReduce::MicroBatch;
  ZeroEnter enter = ZeroEnter::MicroBatch;
  ZeroEnds ends = ZeroEnds::Sharded;
  std::int64_t shard_ranks = 0;    // hybrid: shards span so many ranks and are replicated over the rest of dp; 0 = all of dp
  std::int64_t communicators = 2;  // Fsdp, Deepspeed: 1: gathers and reductions share one, where they run in the order of issue
  DeepspeedOptions deepspeed;
  bool operator==(const ZeroOptions&) const = default;
};

// BMTrain's OptimManager: the loss gradient is multiplied by a scale that the optimizer's gradients are divided by again.
struct LossScaling {
  double initial = 0;                // 0: none. The least scale is 1
  double factor = 2;                 // divides the scale on overflow, multiplies it after good_steps steps without
  std::int64_t good_steps = 1024;
  bool operator==(const LossScaling&) const = default;
};

// One value of the resolved scenario: what holds, and who said so.
struct ResolvedValue {
  std::string path;    // dotted, as --set takes it: "batch.micro_batches"
  std::string value;   // compact JSON
  std::string origin;  // "default", "FILE:LINE", "--set", "preset gpt2", "profile FILE", "hf_config FILE"
};

struct Scenario {
  std::string name;
  std::string file;          // as named by the user; "<stdin>"
  ModelShape model;
  Mesh mesh;
  std::int64_t micro_batches = 1;
  BatchShape batch;
  DType compute = DType::Bf16, master = DType::Fp32, gradient = DType::Fp32;
  DType reduce = DType::Fp32;                 // in which gradients are summed over data-parallel ranks; default: their own type
  std::string order = "1f1b";                 // a row of orders.h, or "csv"
  std::string order_csv;                      // path when order == "csv"
  std::vector<std::int64_t> layers_per_stage; // explicit partition; empty = remainder to the first stages
  P2pMode p2p = P2pMode::Lanes;
  bool p2p_metadata = false;                  // every message is announced by a small one that the receiving host reads
  PipelineOptions pipeline;
  bool backward_descending = false;           // schedule.backward: gpipe only
  std::vector<std::int64_t> warm_up;          // schedule.warm_up: forwards before the first backward per rank (1f1b only); empty = default
  RecomputeMode recompute = RecomputeMode::None;
  std::int64_t recompute_every = 1;           // Every: layers of a group that keeps only its first input
  bool hidden_states = false;                 // the inputs of all layers are returned as one stack, and inspected
  ZeroOptions zero;
  OptimizerKind optimizer = OptimizerKind::Adam;
  bool offload = false;                       // the optimizer's states and steps are the host's
  bool overflow_check = false;                // look for gradients that are not finite; then the optimizer skips the step
  LossScaling loss_scaling;
  double clip = 0;                            // largest norm of all gradients; 0: any
  GradientReduce gradient_reduce = GradientReduce::Overlap;
  Bytes bucket_bytes{25 << 20};               // data-parallel gradient bucket
  std::optional<Machine> machine;             // unset when cost is given
  int nodes = 1;                              // of the machine: stated, or ceil(mesh size / devices per node)
  std::optional<GivenCost> given;
  bool assume_overflow = false;               // value of the overflow guard
  RunTask task = RunTask::Step;
  std::int64_t steps = 1;
  bool lazy_state = false;                    // run.lazy_state: gradients and optimizer states are allocated at their first use
  std::string canonical_json;                 // resolved: every value with defaults, keys sorted; digest input
  std::string sha256;                         // of canonical_json; independent of key order, formatting, comments
  std::vector<ResolvedValue> resolved;        // every leaf of canonical_json, in its order
  std::vector<Diagnostic> notes;              // warnings and notes (small m, "PyTorch would refuse", ...)
};

struct Override {
  std::string path;   // dotted or JSON pointer
  std::string value;  // JSON, else a string
};

// Throws InputError with all problems (at most 20), each with file:line:column, pointer, help. A bad override is a problem too,
// with code OVERRIDE (the cli exits 2 for these). Reading fails with EnvironmentError.
Scenario load_scenario(const std::string& path, const std::vector<Override>& overrides = {});
Scenario parse_scenario(std::string_view text, const std::string& file, const std::vector<Override>& overrides = {});

// Every value with its origin (default, file, --set), pretty JSON lines for `show --resolved`.
std::string resolved_listing(const Scenario& scenario);

}  // namespace steptwin
