// What the readers of a scenario's sections share (private to schedule/scenario*.cpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "schedule/json/json_reader.h"
#include "schedule/scenario.h"

namespace steptwin {

// Sections that were read without a problem: cross-field checks look only at these.
struct GoodSections {
  bool model = false, mesh = false, batch = false, precision = false, pipeline = false, schedule = false, machine = false, cost = false,
       run = false;
};

struct ScenarioReading {
  JsonObject root;
  JsonProblems& problems;
  std::string folder;  // of the scenario file; paths in it are relative to this
  Scenario scenario;
  GoodSections good;
  std::string model_origin;                              // "preset gpt2", "hf_config FILE", or empty: fields not in the file are defaults
  std::string machine_origin;                            // "preset h200_node" or "profile FILE"
  std::string csv_sha256;                                // of the schedule's CSV file
  std::vector<std::unique_ptr<JsonDocument>> documents;  // machine profiles: their nodes must outlive the reading

  JsonObject section(std::string_view name) const;  // with its keys checked
  const JsonNode* node(std::string_view section, std::string_view key) const;
  // A path written in the scenario, as the process can open it: relative to the scenario's folder, or to the current one from --set.
  std::string resolve_path(const JsonNode& node) const;
  // Runs `read`, which opens another file, and turns its complaints into problems; false when there were any.
  template <class Read>
  bool guarded(const JsonNode& at, Read read);
};

void read_model(ScenarioReading& r);
void read_mesh(ScenarioReading& r);
void read_batch(ScenarioReading& r);
void read_precision(ScenarioReading& r);
void read_pipeline(ScenarioReading& r);  // sets defaults of the sections behind it
void read_schedule(ScenarioReading& r);
void read_zero(ScenarioReading& r);  // scenario_zero.cpp
void read_optimizer(ScenarioReading& r);
void read_small_sections(ScenarioReading& r);  // recompute, data_parallel, run, assume
void read_machine_or_cost(ScenarioReading& r);

void check_across_fields(ScenarioReading& r);  // scenario_checks.cpp: impossible combinations; sets nodes and notes
void resolve(ScenarioReading& r);              // resolved.cpp: canonical_json, sha256, resolved

}  // namespace steptwin

#include "schedule/base/error.h"

template <class Read>
bool steptwin::ScenarioReading::guarded(const JsonNode& at, Read read) {
  try {
    read();
    return true;
  } catch (const InputError& e) {
    for (Diagnostic problem : e.problems()) {
      if (problem.place.file.empty()) problem.place = place_of(at);
      problems.add(std::move(problem));
    }
  } catch (const EnvironmentError& e) {
    problems.error("FILE", at, e.what(),
                   at.from_override() ? "paths in --set start at the current folder" : "paths start at the scenario's folder");
  }
  return false;
}
