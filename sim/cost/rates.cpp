#include "sim/cost/rates.h"

#include <fmt/format.h>

#include "schedule/base/error.h"

namespace steptwin {

double needed_rate(double value, const char* figure, const std::string& needed_by) {
  if (value > 0) return value;
  Diagnostic problem;
  problem.code = "NO-RATE";
  problem.text = fmt::format("the machine states no {}, which {} needs", figure, needed_by);
  problem.help = "add it to the machine profile, or give the op its duration";
  throw InputError(problem);
}

}  // namespace steptwin
