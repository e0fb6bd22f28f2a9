#include "schedule/scenario.h"

#include <filesystem>

#include "schedule/base/error.h"
#include "schedule/json/json_reader.h"
#include "schedule/overrides.h"
#include "schedule/scenario_keys.h"
#include "schedule/scenario_parts.h"

namespace steptwin {
namespace {

std::string name_from_file(const std::string& file) {
  const std::string stem = std::filesystem::path(file).stem().string();
  return stem.empty() || file.starts_with("<") ? "scenario" : stem;
}

void read_header(ScenarioReading& r) {
  r.root.only(keys_of(""));
  if (r.root.require("format", "write \"format\": 1")) r.root.integer("format", {1, 1});
  r.root.string("$schema");
  r.scenario.name = r.root.string("name").value_or(name_from_file(r.scenario.file));
  const JsonNode* name = r.root.find("name");
  if (name != nullptr && name->type == JsonType::String && name->text.empty())
    r.problems.error("RANGE", *name, "\"name\" is empty", "give it a name");
}

struct SectionReader {
  void (*read)(ScenarioReading&);
  bool GoodSections::*good;  // nullptr: no later check asks
  const char* required;      // section without which the mark is not set; nullptr: the defaults are good
};

constexpr SectionReader kReaders[] = {
    {read_header, nullptr, nullptr},
    {read_model, &GoodSections::model, "model"},
    {read_mesh, &GoodSections::mesh, nullptr},
    {read_batch, &GoodSections::batch, "batch"},
    {read_precision, &GoodSections::precision, nullptr},
    {read_pipeline, &GoodSections::pipeline, nullptr},
    {read_schedule, &GoodSections::schedule, nullptr},
    {read_zero, nullptr, nullptr},
    {read_optimizer, nullptr, nullptr},
    {read_small_sections, &GoodSections::run, nullptr},
    {read_machine_or_cost, nullptr, nullptr},  // sets its two marks itself
};

void read_sections(ScenarioReading& r) {
  for (const SectionReader& reader : kReaders) {
    const std::size_t before = r.problems.count();
    reader.read(r);
    if (reader.good == nullptr) continue;
    r.good.*reader.good = r.problems.count() == before && (reader.required == nullptr || r.root.has(reader.required));
  }
}

}  // namespace

JsonObject ScenarioReading::section(std::string_view name) const {
  const JsonObject object = root.object(name);
  object.only(keys_of(name));
  return object;
}

const JsonNode* ScenarioReading::node(std::string_view section_name, std::string_view key) const {
  const JsonNode* section_node = root.find(section_name);
  return section_node == nullptr ? nullptr : section_node->find(key);
}

std::string ScenarioReading::resolve_path(const JsonNode& node) const {
  if (node.text == "-") return "./-";  // a file of that name; standard input holds at most the scenario itself
  if (node.from_override() || folder.empty()) return node.text;
  return (std::filesystem::path(folder) / node.text).lexically_normal().string();
}

Scenario parse_scenario(std::string_view text, const std::string& file, const std::vector<Override>& overrides) {
  JsonProblems problems;
  JsonDocument document = JsonDocument::parse(text, file, problems);
  apply_overrides(document, overrides, problems);
  ScenarioReading reading{
      JsonObject(&document.root(), problems), problems, std::filesystem::path(file).parent_path().string(), {}, {}, {}, {}, {}, {}};
  reading.scenario.file = file;
  if (reading.root.present()) {
    read_sections(reading);
    check_across_fields(reading);
  }
  problems.throw_if_errors();
  resolve(reading);
  return std::move(reading.scenario);
}

Scenario load_scenario(const std::string& path, const std::vector<Override>& overrides) {
  return parse_scenario(read_text_file(path), path == "-" ? "<stdin>" : path, overrides);
}

}  // namespace steptwin
