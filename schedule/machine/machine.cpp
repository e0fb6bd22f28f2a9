#include "schedule/machine/machine.h"

#include <algorithm>
#include <filesystem>

#include "schedule/base/data_dir.h"
#include "schedule/base/error.h"
#include "schedule/machine/profile_reader.h"

namespace steptwin {
namespace {

std::filesystem::path preset_folder() { return std::filesystem::path(data_dir()) / "scenarios" / "machines"; }

}  // namespace

double EfficiencyCurve::at(double size) const {
  double efficiency = steps.empty() ? 1 : steps.front().second;
  for (const auto& [at_least, value] : steps) {
    if (size < at_least) break;
    efficiency = value;
  }
  return efficiency;
}

Machine load_machine(const std::string& path) {
  JsonProblems problems;
  const JsonDocument document = JsonDocument::read(path, problems);
  Machine machine = read_machine(document.root(), problems);
  problems.throw_if_errors();
  return machine;
}

std::vector<std::string> machine_presets() {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(preset_folder(), error);
  if (error) return names;
  for (const auto& entry : entries) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string machine_preset_path(const std::string& preset) {
  const std::vector<std::string> known = machine_presets();
  if (std::find(known.begin(), known.end(), preset) != known.end()) return (preset_folder() / (preset + ".json")).string();
  const std::string near = nearest_name(preset, known);
  const std::string help = known.empty() ? "no machine profiles in " + preset_folder().string() + ": is STEPTWIN_DATA right?"
                                         : (near.empty() ? "" : "did you mean " + in_quotes(near) + "? ") + "known: " + join_names(known);
  throw InputError(Diagnostic{Severity::Error, "UNKNOWN-VALUE", "unknown machine preset " + in_quotes(preset), help, {}, {}});
}

}  // namespace steptwin
