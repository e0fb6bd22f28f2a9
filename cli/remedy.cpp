#include "cli/remedy.h"

#include <algorithm>
#include <memory>

#include "cli/memory_view.h"
#include "cli/simulation.h"
#include "schedule/base/error.h"

namespace steptwin {

namespace {

constexpr std::size_t kWanted = 2;

Remedy both(const Remedy& a, const Remedy& b) {
  Remedy result = a;
  result.text += " and " + b.text;
  result.overrides.insert(result.overrides.end(), b.overrides.begin(), b.overrides.end());
  return result;
}

// Changes that keep ranks and batch, cheapest first.
std::vector<Remedy> gentle(const Scenario& scenario) {
  std::vector<Remedy> list;
  if (scenario.order == "gpipe") list.push_back({"fewer micro-batches in flight", {{"schedule.order", "1f1b"}}, {}});
  if (scenario.recompute == RecomputeMode::None) list.push_back({"activation recompute", {{"recompute.mode", "full"}}, {}});
  if (scenario.gradient == DType::Fp32) list.push_back({"bf16 gradients", {{"precision.gradient", "bf16"}}, {}});
  const std::size_t singles = list.size();
  for (std::size_t a = 0; a < singles; ++a) {
    for (std::size_t b = a + 1; b < singles; ++b) list.push_back(both(list[a], list[b]));
  }
  if (singles == 3) list.push_back(both(both(list[0], list[1]), list[2]));
  return list;
}

// Then smaller micro-batches (each alone, and with everything gentle), then more pipeline stages.
std::vector<Remedy> candidates(const Scenario& scenario) {
  std::vector<Remedy> list = gentle(scenario);
  const std::size_t gentle_count = list.size();
  const auto add = [&](const Remedy& remedy) {
    list.push_back(remedy);
    if (gentle_count > 0) list.push_back(both(list[gentle_count - 1], remedy));
  };
  if (scenario.batch.micro_batch > 1) add({"micro-batches of one sequence", {{"batch.micro_batch_size", "1"}}, {}});
  const auto axis = scenario.mesh.axis("pp");
  const std::int64_t stages = axis ? scenario.mesh.axes[*axis].size : 1;
  if (!scenario.layers_per_stage.empty() || !scenario.warm_up.empty() || scenario.order == "csv") return list;
  const std::int64_t layers = scenario.model.layers;
  for (std::int64_t more = 2 * stages; more < layers; more *= 2) add({"more pipeline stages", {{"mesh.pp", std::to_string(more)}}, {}});
  if (stages < layers) add({"a pipeline stage for every layer", {{"mesh.pp", std::to_string(layers)}}, {}});
  return list;
}

bool works(const SubjectRequest& request, Remedy& remedy) {
  SubjectRequest changed = request;
  changed.overrides.insert(changed.overrides.end(), remedy.overrides.begin(), remedy.overrides.end());
  try {
    const Subject subject = load_subject(changed);
    remedy.peak = largest_device_peak(subject.schedule).bytes;
    if (!subject.machine || remedy.peak > subject.machine->device.memory) return false;
    SimulateOptions options;
    options.detail = TraceDetail::Summary;
    return simulate(subject.schedule, *cost_model_of(subject), &*subject.machine, options).outcome.status == Status::Ok;
  } catch (const InputError&) {
    return false;  // the scenario does not allow this change
  } catch (const EnvironmentError&) {
    return false;  // this computer cannot hold the changed schedule
  }
}

}  // namespace

std::string Remedy::flags() const {
  std::string text_of_flags;
  for (const Override& entry : overrides) text_of_flags += (text_of_flags.empty() ? "--set " : " --set ") + entry.path + "=" + entry.value;
  return text_of_flags;
}

std::vector<Remedy> find_remedies(const SubjectRequest& request, const Scenario& scenario) {
  std::vector<Remedy> found;
  for (Remedy& remedy : candidates(scenario)) {
    if (works(request, remedy)) found.push_back(remedy);
    if (found.size() == kWanted) break;
  }
  return found;
}

}  // namespace steptwin
