// "machine" (a preset or a profile, with figures of one's own laid over it) or, in its place, "cost" with given stage times.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "schedule/machine/profile_reader.h"
#include "schedule/scenario_parts.h"

namespace steptwin {
namespace {

// 1000 s: no stage takes longer for one micro-batch; keeps sums over steps and micro-batches inside int64 ns.
constexpr NumberRange kStageTimeUs{0, 1e9};

std::string profile_path(ScenarioReading& r, const JsonObject& o) {
  std::string path;
  if (o.has("profile")) {
    if (o.string("profile")) path = r.resolve_path(*o.find("profile"));
    r.machine_origin = "profile " + path;
    return path;
  }
  const auto names = machine_presets();
  const auto preset = names.empty() ? std::nullopt : o.choice("preset", names);
  if (names.empty()) r.guarded(*o.find("preset"), [&] { machine_preset_path(o.find("preset")->text); });
  if (preset) path = machine_preset_path(names[*preset]);
  r.machine_origin = preset ? "preset " + names[*preset] : "";
  return path;
}

bool one_source(ScenarioReading& r, const JsonObject& o) {
  const std::string help = "write \"machine\": {\"preset\": NAME}; presets: " + join_names(machine_presets());
  if (o.has("preset") && o.has("profile"))
    r.problems.error_at_key("CONFLICT", *o.find("profile"), "\"preset\" and \"profile\" both say which machine", "remove one of the two");
  else if (!o.has("preset") && !o.has("profile"))
    r.problems.error_at_key("MISSING", *o.node(), "\"machine\" names neither a preset nor a profile", help);
  return o.has("preset") != o.has("profile");
}

void read_machine_section(ScenarioReading& r) {
  const std::size_t before = r.problems.count();
  const JsonObject o = r.section("machine");
  if (!o.present() || !one_source(r, o)) return;
  const std::string path = profile_path(r, o);
  if (path.empty()) return;
  const JsonNode& named = *o.find(o.has("preset") ? "preset" : "profile");
  const bool read = r.guarded(named, [&] { r.documents.push_back(std::make_unique<JsonDocument>(JsonDocument::read(path, r.problems))); });
  if (!read) return;
  JsonNode& profile = r.documents.back()->root();
  JsonNode figures = *o.node();
  std::erase_if(figures.items, [](const JsonNode& n) { return n.key == "preset" || n.key == "profile"; });
  // A key that is wrong at the top was reported with the section's keys; deeper ones are reported by read_machine.
  std::erase_if(figures.items, [](const JsonNode& n) {
    const auto& known = machine_figure_keys();
    return std::find(known.begin(), known.end(), n.key) == known.end();
  });
  if (profile.type == JsonType::Object) overlay(profile, figures);
  r.scenario.machine = read_machine(profile, r.problems);
  r.good.machine = r.problems.count() == before;
}

std::vector<Duration> durations(const std::vector<double>& us) {
  std::vector<Duration> out;
  for (const double value : us) out.emplace_back(std::llround(value * 1e3));  // to the nearest ns
  return out;
}

void read_cost_section(ScenarioReading& r) {
  const std::size_t before = r.problems.count();
  const JsonObject o = r.section("cost");
  if (!o.present()) return;
  if (o.require("model", "write \"model\": \"given\"")) o.choice("model", {"given"});
  for (const char* key : {"forward_us", "input_grad_us", "weight_grad_us"}) o.require(key, "the time of a whole stage for one micro-batch");
  GivenCost cost;
  cost.forward = durations(o.numbers("forward_us", kStageTimeUs).value_or(std::vector<double>{}));
  cost.input_grad = durations(o.numbers("input_grad_us", kStageTimeUs).value_or(std::vector<double>{}));
  cost.weight_grad = durations(o.numbers("weight_grad_us", kStageTimeUs).value_or(std::vector<double>{}));
  cost.optimizer = durations(o.numbers("optimizer_us", kStageTimeUs).value_or(std::vector<double>{0}));
  cost.p2p = Duration(std::llround(o.number("p2p_us", kStageTimeUs).value_or(0) * 1e3));
  r.scenario.given = std::move(cost);
  r.good.cost = r.problems.count() == before;
}

}  // namespace

void read_machine_or_cost(ScenarioReading& r) {
  const JsonNode* machine = r.root.find("machine");
  const JsonNode* cost = r.root.find("cost");
  if (machine != nullptr && cost != nullptr)
    r.problems.error_at_key("CONFLICT", *machine, "\"machine\" and \"cost\" both say how long things take",
                            "remove one of the two: \"cost\" holds given stage times");
  if (machine == nullptr && cost == nullptr) {
    r.root.require("machine", "write \"machine\": {\"preset\": NAME}; presets: " + join_names(machine_presets()) +
                                  "; or give stage times in \"cost\"");
    return;
  }
  read_machine_section(r);
  read_cost_section(r);
}

}  // namespace steptwin
