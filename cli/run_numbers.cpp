// The numbers of a run by name, and the facts behind MFU and tokens per second.
#include <nlohmann/json.hpp>

#include "cli/run_json.h"
#include "cli/run_report.h"
#include "schedule/batching.h"
#include "schedule/compile.h"

namespace steptwin {

namespace {

// The closed form of the order, where it has one; it knows no embedding and head between the batches of a pipeline.
std::optional<double> bubble_theory(const Scenario& scenario) {
  if (batch_on_every_rank(scenario)) return std::nullopt;
  const OrderEntry* order = find_order(scenario.order);
  const double rate = order == nullptr ? -1 : order->bubble_rate(order_options(scenario));
  return rate < 0 ? std::nullopt : std::optional(rate);
}

}  // namespace

StepFacts step_facts(const Subject& subject, std::uint32_t steps) {
  StepFacts facts;
  facts.steps = steps;
  if (!subject.scenario || subject.scenario->task == RunTask::Save) return facts;
  const Scenario& scenario = *subject.scenario;
  const auto micro_batches = static_cast<double>(scenario.micro_batches * batch_ranks(scenario));  // of all ranks that have some
  facts.model_flops = micro_batches * static_cast<double>(model_flops_per_micro_batch(scenario.model, scenario.batch).value);
  facts.tokens = micro_batches * static_cast<double>(scenario.batch.micro_batch * scenario.batch.sequence);
  facts.bubble_theory = bubble_theory(scenario);
  if (!subject.machine) return facts;
  const auto& peaks = subject.machine->device.matrix_peak;
  const auto peak = peaks.find(scenario.compute);
  if (peak != peaks.end()) facts.peak_flops_per_rank = peak->second.value;
  return facts;
}

NamedNumbers summary_numbers(const RunSummary& summary) {
  NamedNumbers numbers;
  const nlohmann::ordered_json json = summary_json(summary);
  for (const auto& [key, value] : json.items()) {
    if (value.is_number()) numbers.emplace_back(key, value.get<double>());
  }
  return numbers;
}

std::vector<std::string> summary_keys() {
  std::vector<std::string> keys;
  const nlohmann::ordered_json json = summary_json({});
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) keys.push_back(key);
  }
  return keys;
}

}  // namespace steptwin
