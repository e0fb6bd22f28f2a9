#include "schedule/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include "schedule/base/error.h"
#include "schedule/batching.h"
#include "schedule/mechanisms/mechanism.h"
#include "schedule/mechanisms/segment_ops.h"
#include "schedule/model/partition.h"
#include "schedule/orders/actions.h"
#include "schedule/place_messages.h"
#include "schedule/save.h"

namespace steptwin {
namespace {

[[noreturn]] void refuse(const Scenario& scenario, const char* code, std::string text, std::string help) {
  Diagnostic problem;
  problem.code = code;
  problem.text = std::move(text);
  problem.help = std::move(help);
  problem.place.file = scenario.file;
  throw InputError(problem);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file)
    throw EnvironmentError(EnvironmentError::Kind::File, fmt::format("cannot read schedule file '{}'", path), "check schedule.csv");
  return text.str();
}

ActionGrid csv_actions(const Scenario& scenario) {
  const std::string text = read_file(scenario.order_csv);
  const bool lowered = text.find("SEND_") != std::string::npos || text.find("RECV_") != std::string::npos ||
                       text.find("SHARD") != std::string::npos || text.find("REDUCE_GRAD") != std::string::npos;
  ActionGrid grid = read_csv(text, scenario.order_csv, lowered ? CsvFormat::ComputeComms : CsvFormat::ComputeOnly);
  const auto ranks = static_cast<std::int32_t>(axis_size(scenario.mesh, "pp"));
  if (static_cast<std::int32_t>(grid.size()) != ranks) {
    refuse(scenario, "CSV-RANKS", fmt::format("'{}' has {} rows for {} pipeline ranks", scenario.order_csv, grid.size(), ranks),
           fmt::format("set mesh.pp to {}, or use a file with {} rows", grid.size(), ranks));
  }
  const std::int32_t micro_batches = micro_batch_count(grid);
  if (micro_batches != scenario.micro_batches) {
    refuse(scenario, "CSV-MICRO-BATCHES",
           fmt::format("'{}' schedules {} micro-batches, the scenario has {}", scenario.order_csv, micro_batches, scenario.micro_batches),
           fmt::format("set batch.micro_batches to {}", micro_batches));
  }
  return grid;
}

void check_supported(const Scenario& scenario) {
  for (const Axis& axis : scenario.mesh.axes) {
    if (axis.size > 1 && axis.name != "pp" && axis.name != "dp")
      refuse(scenario, "UNSUPPORTED", fmt::format("mesh axis '{}' of size {} has no mechanism yet", axis.name, axis.size),
             fmt::format("set mesh.{} to 1", axis.name));
  }
}

// A weight gradient apart from its input gradient would leave a unit twice.
void check_split_backward(const Scenario& scenario, const ActionGrid& grid) {
  if (scenario.zero.level == 0) return;
  for (const auto& actions : grid)
    for (const Action& action : actions)
      if (action.kind == ActionKind::I || action.kind == ActionKind::W)
        refuse(scenario, "ZERO", fmt::format("ZeRO level {} with a backward that is split into I and W", scenario.zero.level),
               "use an order with whole backwards (B), or \"zero\": {\"level\": 0}");
}

// What load_scenario() checks with places.
void check_batches(const Scenario& scenario) {
  if (!batch_on_every_rank(scenario)) return;
  const std::int64_t samples = scenario.batch.micro_batch * axis_size(scenario.mesh, "pp");
  if (scenario.order != "gpipe" || axis_size(scenario.mesh, "pp") == 1 || samples % scenario.pipeline.micro_batches != 0)
    refuse(scenario, "PIPELINE", "form \"bmtrain\" needs order gpipe, two stages and micro-batches that divide the pipeline's samples",
           "choose a divisor of pp * micro_batch_size");
}

std::vector<RankId> ranks_at(const Mesh& mesh, std::uint32_t pipeline_rank) {
  std::vector<RankId> ranks;
  for (std::uint32_t rank = 0; rank < mesh.size(); ++rank) {
    if (mesh.coordinate(RankId(rank), "pp") == pipeline_rank) ranks.emplace_back(rank);
  }
  return ranks;
}

// One batch behind the other.
void repeat_batches(const Scenario& scenario, ActionGrid& grid) {
  const auto pieces = static_cast<std::int32_t>(pieces_of_batch(scenario)), batches = static_cast<std::int32_t>(scenario.micro_batches);
  for (ActionList& list : grid) {
    const ActionList first = list;
    for (std::int32_t batch = 1; batch < batches; ++batch)
      for (Action action : first) {
        action.micro_batch += batch * pieces;
        list.push_back(action);
      }
  }
}

using Mechanisms = std::vector<std::unique_ptr<Mechanism>>;

Mechanisms make_mechanisms(const Plan& plan, ScheduleBuilder& builder) {
  Mechanisms mechanisms;
  for (const MechanismRow& row : mechanism_table()) {
    if (row.active(plan)) mechanisms.push_back(row.make(plan, builder));
  }
  return mechanisms;
}

void weave(const Visits& visits, const Mechanisms& mechanisms, ProgramContext& program) {
  for (const auto& mechanism : mechanisms) mechanism->begin(visits, program);
  for (std::size_t i = 0; i < visits.size(); ++i) {
    for (const auto& mechanism : mechanisms) mechanism->before(visits, i, program);
    if (visits[i].kind == VisitKind::Segment) emit_segment(visits[i], program);
    for (auto it = mechanisms.rbegin(); it != mechanisms.rend(); ++it) (*it)->after(visits, i, program);
  }
}

void build_program(const Plan& plan, std::int32_t rank, const SharedIds& ids, const Mechanisms& mechanisms, Emitter& emit) {
  emit.begin_program(fmt::format("pp{}", rank), ranks_at(plan.scenario->mesh, static_cast<std::uint32_t>(rank)),
                     plan.stages_of_rank[static_cast<std::size_t>(rank)]);
  ProgramContext program{plan, ids, emit, rank, emit.lane("compute", Engine::Compute), make_tensors(plan, rank, ids, emit), OpId(), {}};
  Visits visits = make_visits(plan, rank);
  if (plan.recompute()) visits = recompute_layers(plan, rank, visits);
  weave(visits, mechanisms, program);
}

}  // namespace

OrderOptions order_options(const Scenario& scenario) {
  OrderOptions options;
  options.ranks = static_cast<std::int32_t>(axis_size(scenario.mesh, "pp"));
  options.micro_batches = static_cast<std::int32_t>(pipelined_together(scenario));
  options.warm_up = scenario.warm_up;
  options.backward_descending = scenario.backward_descending;
  return options;
}

ActionGrid scenario_actions(const Scenario& scenario) {
  if (scenario.order == "csv") return csv_actions(scenario);
  const OrderEntry* order = find_order(scenario.order);
  if (!order) {
    std::vector<std::string> names;
    for (const OrderEntry& entry : order_table()) names.emplace_back(entry.name);
    const std::string near = nearest_name(scenario.order, names);
    refuse(scenario, "ORDER-NAME", fmt::format("no schedule order '{}'", scenario.order),
           near.empty() ? "use " + names.front() : "did you mean '" + near + "'?");
  }
  ActionGrid grid = order->make(order_options(scenario));
  if (batch_on_every_rank(scenario)) repeat_batches(scenario, grid);
  return grid;
}

std::vector<std::int64_t> stage_layers(const Scenario& scenario, std::int32_t stages) {
  const std::int64_t layers = scenario.model.layers;
  if (scenario.layers_per_stage.empty()) return default_partition(scenario.model, stages);
  const auto& given = scenario.layers_per_stage;
  if (given.size() != static_cast<std::size_t>(stages))
    refuse(scenario, "PARTITION", fmt::format("layers_per_stage has {} entries for {} stages", given.size(), stages),
           "give one number per stage");
  const std::int64_t sum = std::accumulate(given.begin(), given.end(), std::int64_t{0});
  if (sum != layers || std::any_of(given.begin(), given.end(), [](std::int64_t n) { return n < 0; }))
    refuse(scenario, "PARTITION", fmt::format("layers_per_stage sums to {}, the model has {} layers", sum, layers),
           "use numbers >= 0 that add up to the layers");
  if (const auto stage = stage_inside_block(scenario.model, given))
    refuse(scenario, "PARTITION", fmt::format("stage {} begins in the middle of a block of layers that share their parameters", *stage),
           "let stages begin with a block");
  return given;
}

// Per micro-batch: two segments a layer in each phase, embedding and head in two, a send and a receive each way between stages.
double rough_op_count(const Scenario& scenario) {
  constexpr double kSaveOps = 60;  // of a layer: a gather, then for each parameter send, receive, copy and wait
  if (scenario.task == RunTask::Save) return kSaveOps * static_cast<double>(scenario.model.layers + 1);
  const double phases = scenario.recompute != RecomputeMode::None || scenario.order == "csv" ? 3 : 2;
  const double messages = 4.0 * static_cast<double>(axis_size(scenario.mesh, "pp") - 1);
  const double per_layer = scenario.zero.form == ZeroForm::Deepspeed ? 60 : 8;  // gathers, fills, reductions, waits; of every parameter
  const double units = scenario.zero.level > 0 ? per_layer * static_cast<double>(scenario.model.layers) : 0;
  return static_cast<double>(layer_micro_batches(scenario)) *
         (units + 2 * phases * static_cast<double>(scenario.model.layers) + 4 + messages);
}

Schedule compile(const Scenario& scenario, const StageCosts&) {
  check_supported(scenario);
  check_batches(scenario);
  ActionGrid actions = scenario_actions(scenario);
  check_split_backward(scenario, actions);
  const auto stages = static_cast<std::int32_t>(stage_ranks(actions).size());
  const Plan plan = make_plan(scenario, place_messages(actions, scenario.p2p), stage_layers(scenario, stages));
  if (scenario.task == RunTask::Save) return save_schedule(plan);
  ScheduleBuilder builder(scenario.mesh);
  const SharedIds ids = make_shared_ids(plan, builder);
  const Mechanisms mechanisms = make_mechanisms(plan, builder);
  Emitter emit(builder);
  for (std::int32_t rank = 0; rank < plan.ranks(); ++rank) build_program(plan, rank, ids, mechanisms, emit);
  return builder.finish();
}

}  // namespace steptwin
