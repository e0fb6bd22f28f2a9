// The sections of a scenario, each on its own: types, ranges, names, defaults.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "schedule/base/digest.h"
#include "schedule/orders/orders.h"
#include "schedule/scenario_parts.h"

namespace steptwin {
namespace {

constexpr const char* kAxes[] = {"pp", "dp", "cp", "ep", "tp"};  // default order, slowest first (DESIGN 3)
constexpr std::int64_t kMaxAxis = 1 << 20;
constexpr IntegerRange kMicroBatches{1, 1 << 20};

// Axes that schedules do not use yet: accepted by name, refused by size.
void refuse_axis(ScenarioReading& r, const JsonObject& o, const char* axis, const char* what) {
  const std::optional<std::int64_t> size = o.integer(axis, {1, kMaxAxis});
  if (size.value_or(1) == 1) return;
  r.problems.error("UNSUPPORTED", *o.find(axis), fmt::format("{} is {}, but {} is not supported yet", in_quotes(axis), *size, what),
                   fmt::format("write \"{}\": 1", axis));
}

// The order of the axes: those stated first, the rest (which must have size 1) after them in default order.
std::vector<std::string> axis_order(ScenarioReading& r, const JsonObject& o) {
  const std::vector<std::string> all(std::begin(kAxes), std::end(kAxes));
  const auto stated = o.strings("order");
  if (!stated) return all;
  const JsonNode& list = *o.find("order");
  std::vector<std::string> order;
  for (std::size_t i = 0; i < stated->size(); ++i) {
    const std::string& axis = (*stated)[i];
    if (std::find(all.begin(), all.end(), axis) == all.end())
      r.problems.error("UNKNOWN-VALUE", list.items[i], fmt::format("unknown axis {}", in_quotes(axis)), "known: " + join_names(all));
    else if (std::find(order.begin(), order.end(), axis) != order.end())
      r.problems.error("DUPLICATE", list.items[i], fmt::format("axis {} stands twice", in_quotes(axis)), "name each axis once");
    else
      order.push_back(axis);
  }
  for (const std::string& axis : all) {
    if (std::find(order.begin(), order.end(), axis) != order.end()) continue;
    const JsonNode* size = o.find(axis);
    if (size != nullptr && size->type == JsonType::Integer && size->integer > 1)
      r.problems.error("MESH", list, fmt::format("\"order\" lacks the axis {}, whose size is {}", in_quotes(axis), size->integer),
                       "name it");
    order.push_back(axis);
  }
  return order;
}

DType dtype_of(const JsonObject& o, const char* key, const std::vector<std::string>& names, DType fallback) {
  const std::optional<std::size_t> index = o.choice(key, names);
  if (!index) return fallback;
  const std::string& name = names[*index];
  return name == "bf16" ? DType::Bf16 : name == "fp16" ? DType::Fp16 : DType::Fp32;
}

std::vector<std::string> order_names() {
  std::vector<std::string> names;
  for (const OrderEntry& entry : order_table()) names.emplace_back(entry.name);
  names.emplace_back("csv");
  return names;
}

void read_csv_path(ScenarioReading& r, const JsonObject& o) {
  if (!o.require("csv", "\"order\": \"csv\" reads the schedule from a file: name it")) return;
  if (!o.string("csv")) return;
  const JsonNode& node = *o.find("csv");
  r.scenario.order_csv = r.resolve_path(node);
  r.guarded(node, [&] { r.csv_sha256 = sha256_hex(read_text_file(r.scenario.order_csv)); });
}

void read_order(ScenarioReading& r, const JsonObject& o) {
  const std::vector<std::string> names = order_names();
  if (const auto index = o.choice("order", names)) r.scenario.order = names[*index];
  if (r.scenario.order == "csv") return read_csv_path(r, o);
  o.string("csv");
  if (o.has("csv"))
    r.problems.error_at_key("CONFLICT", *o.find("csv"), fmt::format("\"csv\" is not read with order {}", in_quotes(r.scenario.order)),
                            "write \"order\": \"csv\", or remove \"csv\"");
}

// A key that one order alone understands.
void only_for(ScenarioReading& r, const JsonObject& o, const char* key, const char* order) {
  if (!o.has(key) || r.scenario.order == order) return;
  r.problems.error_at_key("CONFLICT", *o.find(key),
                          fmt::format("{} is for order {}, not {}", in_quotes(key), in_quotes(order), in_quotes(r.scenario.order)),
                          fmt::format("write \"order\": \"{}\", or remove \"{}\"", order, key));
}

// Keys of "optimizer" that need an optimizer, or each other.
void check_optimizer_keys(ScenarioReading& r, const JsonObject& o) {
  const Scenario& s = r.scenario;
  const std::pair<const char*, bool> kUses[] = {{"offload", s.offload},
                                                {"clip", s.clip > 0},
                                                {"loss_scale", s.loss_scaling.initial > 0},
                                                {"overflow_check", s.overflow_check && o.has("overflow_check")}};
  for (const auto& [key, used] : kUses) {
    if (!used || s.optimizer != OptimizerKind::None) continue;
    r.problems.error_at_key("CONFLICT", *o.find(key), fmt::format("{} without an optimizer", in_quotes(key)),
                            fmt::format("write \"kind\": \"adam\", or remove {}", in_quotes(key)));
  }
  for (const char* key : {"loss_scale_factor", "loss_scale_steps"}) {
    if (!o.has(key) || o.has("loss_scale")) continue;
    r.problems.error_at_key("CONFLICT", *o.find(key), fmt::format("{} says how a scale moves, and the loss is not scaled", in_quotes(key)),
                            fmt::format("write \"loss_scale\": 65536, or remove {}", in_quotes(key)));
  }
  if (s.loss_scaling.initial > 0 && !s.overflow_check)
    r.problems.error_at_key("CONFLICT", *o.find("overflow_check"), "a loss scale moves by what the overflow check finds",
                            "write \"overflow_check\": true, or remove \"loss_scale\"");
}

}  // namespace

void read_mesh(ScenarioReading& r) {
  const JsonObject o = r.section("mesh");
  o.integer("pp", {1, kMaxAxis});
  o.integer("dp", {1, kMaxAxis});
  refuse_axis(r, o, "cp", "context parallelism");
  refuse_axis(r, o, "ep", "expert parallelism");
  refuse_axis(r, o, "tp", "tensor parallelism");
  for (const std::string& axis : axis_order(r, o)) {
    const JsonNode* size = o.find(axis);
    const bool whole =
        size != nullptr && size->real >= 1 && size->real <= static_cast<double>(kMaxAxis) && size->real == std::floor(size->real);
    r.scenario.mesh.axes.push_back({axis, whole ? static_cast<std::uint32_t>(size->real) : 1u});
  }
}

void read_batch(ScenarioReading& r) {
  if (!r.root.require("batch", "for example \"batch\": {\"micro_batches\": 8, \"micro_batch_size\": 1, \"sequence_length\": 1024}")) return;
  const JsonObject o = r.section("batch");
  o.require("micro_batches", "how many micro-batches each data-parallel rank runs in a step");
  o.require("sequence_length", "tokens of one sample, for example 1024");
  r.scenario.micro_batches = o.integer("micro_batches", kMicroBatches).value_or(1);
  r.scenario.batch.micro_batch = o.integer("micro_batch_size", {1, 1 << 20}).value_or(1);
  r.scenario.batch.sequence = o.integer("sequence_length", {1, 1 << 26}).value_or(1);
}

void read_precision(ScenarioReading& r) {
  const JsonObject o = r.section("precision");
  r.scenario.compute = dtype_of(o, "compute", {"bf16", "fp16", "fp32"}, DType::Bf16);
  r.scenario.master = dtype_of(o, "master", {"fp32"}, DType::Fp32);
  r.scenario.gradient = dtype_of(o, "gradient", {"fp32", "bf16", "fp16"}, DType::Fp32);
  r.scenario.reduce = dtype_of(o, "reduce", {"fp32", "bf16", "fp16"}, r.scenario.gradient);
}

void read_pipeline(ScenarioReading& r) {
  const JsonObject o = r.section("pipeline");
  const bool bmtrain = o.choice("form", {"stages", "bmtrain"}).value_or(0) == 1;
  PipelineOptions& pipeline = r.scenario.pipeline;
  const std::int64_t stages = r.scenario.mesh.axes[*r.scenario.mesh.axis("pp")].size;
  pipeline.micro_batches = o.integer("micro_batches", kMicroBatches).value_or(bmtrain ? stages : 1);
  if (!bmtrain && o.has("micro_batches"))
    r.problems.error_at_key("CONFLICT", *o.find("micro_batches"), "\"pipeline.micro_batches\" cuts the gathered batch of form \"bmtrain\"",
                            "write \"form\": \"bmtrain\" beside it, or use batch.micro_batches");
  if (!bmtrain) return;
  pipeline.form = PipelineForm::Bmtrain;
  r.scenario.order = "gpipe";
  r.scenario.p2p = P2pMode::Compute;
}

void read_schedule(ScenarioReading& r) {
  const JsonObject o = r.section("schedule");
  read_order(r, o);
  constexpr P2pMode kModes[] = {P2pMode::Lanes, P2pMode::OneLane, P2pMode::Grouped, P2pMode::Compute, P2pMode::ComputeRecv};
  if (const auto mode = o.choice("p2p", {"lanes", "one_lane", "grouped", "compute", "compute_recv"})) r.scenario.p2p = kModes[*mode];
  r.scenario.p2p_metadata = o.boolean("metadata").value_or(false);
  if (r.scenario.p2p_metadata && r.scenario.p2p == P2pMode::Grouped)
    r.problems.error_at_key("CONFLICT", *o.find("metadata"), "the host cannot read a message between two that are grouped",
                            "write \"p2p\": \"lanes\", or remove \"metadata\"");
  r.scenario.layers_per_stage = o.integers("layers_per_stage", {1, 10000}).value_or(std::vector<std::int64_t>{});
  r.scenario.warm_up = o.integers("warm_up", {0, kMicroBatches.max}).value_or(std::vector<std::int64_t>{});
  r.scenario.backward_descending = o.choice("backward", {"ascending", "descending"}).value_or(0) == 1;
  only_for(r, o, "warm_up", "1f1b");
  only_for(r, o, "backward", "gpipe");
}

void read_optimizer(ScenarioReading& r) {
  constexpr NumberRange kScale{1, 3.4e38}, kFactor{1, 1e6, true}, kNorm{0, 1e12, true};
  const JsonObject o = r.section("optimizer");
  Scenario& s = r.scenario;
  s.optimizer = o.choice("kind", {"adam", "none"}).value_or(0) == 1 ? OptimizerKind::None : OptimizerKind::Adam;
  s.offload = o.boolean("offload").value_or(false);
  s.clip = o.number("clip", kNorm).value_or(0);
  s.loss_scaling.initial = o.number("loss_scale", kScale).value_or(0);
  s.loss_scaling.factor = o.number("loss_scale_factor", kFactor).value_or(s.loss_scaling.factor);
  s.loss_scaling.good_steps = o.integer("loss_scale_steps", {1, 1'000'000'000}).value_or(s.loss_scaling.good_steps);
  s.overflow_check = o.boolean("overflow_check").value_or(s.loss_scaling.initial > 0);
  check_optimizer_keys(r, o);
}

void read_small_sections(ScenarioReading& r) {
  constexpr RecomputeMode kModes[] = {RecomputeMode::None, RecomputeMode::Full, RecomputeMode::Every, RecomputeMode::Sqrt};
  const JsonObject recompute = r.section("recompute");
  r.scenario.recompute = kModes[recompute.choice("mode", {"none", "full", "every", "sqrt"}).value_or(0)];
  r.scenario.recompute_every = recompute.integer("every", {1, 10000}).value_or(1);
  r.scenario.hidden_states = recompute.boolean("hidden_states").value_or(false);
  if (recompute.has("every") != (r.scenario.recompute == RecomputeMode::Every))
    r.problems.error_at_key("CONFLICT", recompute.has("every") ? *recompute.find("every") : *recompute.find("mode"),
                            "\"mode\": \"every\" and \"every\" belong together",
                            "write \"mode\": \"every\", \"every\": 2, or neither");
  const JsonObject data_parallel = r.section("data_parallel");
  const bool end = data_parallel.choice("reduce", {"overlap", "end"}).value_or(0) == 1;
  r.scenario.gradient_reduce = end ? GradientReduce::End : GradientReduce::Overlap;
  if (const auto mib = data_parallel.number("bucket_mib", {0.001, 1e6}))
    r.scenario.bucket_bytes = Bytes(static_cast<std::int64_t>(std::llround(*mib * 1048576)));
  r.scenario.task = r.section("run").choice("task", {"step", "save"}).value_or(0) == 1 ? RunTask::Save : RunTask::Step;
  r.scenario.steps = r.section("run").integer("steps", {1, 10000}).value_or(1);
  r.scenario.lazy_state = r.section("run").boolean("lazy_state").value_or(false);
  r.scenario.assume_overflow = r.section("assume").boolean("overflow").value_or(false);
}

}  // namespace steptwin
