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

enum class P2pMode : std::uint8_t { Lanes, OneLane, Grouped };
enum class RecomputeMode : std::uint8_t { None, Full };
enum class GradientReduce : std::uint8_t { Overlap, End };   // data-parallel all-reduce: bucketed in the last backward, or after it
enum class OptimizerKind : std::uint8_t { Adam, None };

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
  std::string order = "1f1b";                 // a row of orders.h, or "csv"
  std::string order_csv;                      // path when order == "csv"
  std::vector<std::int64_t> layers_per_stage; // explicit partition; empty = remainder to the first stages
  P2pMode p2p = P2pMode::Lanes;
  bool backward_descending = false;           // schedule.backward: gpipe only
  std::vector<std::int64_t> warm_up;          // schedule.warm_up: forwards before the first backward per rank (1f1b only); empty = default
  RecomputeMode recompute = RecomputeMode::None;
  OptimizerKind optimizer = OptimizerKind::Adam;
  GradientReduce gradient_reduce = GradientReduce::Overlap;
  Bytes bucket_bytes{25 << 20};               // data-parallel gradient bucket
  std::optional<Machine> machine;             // unset when cost is given
  int nodes = 1;                              // of the machine: stated, or ceil(mesh size / devices per node)
  std::optional<GivenCost> given;
  bool assume_overflow = false;               // value of the overflow guard
  std::int64_t steps = 1;
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
