// What a calibration gave, for people and for machines.
#pragma once

#include <string>
#include <vector>

#include "cli/format.h"
#include "cli/table.h"
#include "schedule/machine/machine.h"

namespace steptwin {

struct ScenarioCoverage {
  std::string name;
  std::uint64_t ops = 0, measured = 0;  // op instances whose duration a cost model says; those with a row of their own
};

struct CalibrationReport {
  std::string path;
  Machine machine;  // with its measured tables
  std::vector<ScenarioCoverage> coverage;
  double seconds = 0;
};

std::string calibration_card(const CalibrationReport& report, Micro micro);
std::string calibration_json(const CalibrationReport& report, Format format);

}  // namespace steptwin
