#include "schedule/base/error.h"

#include <utility>

namespace steptwin {
namespace {
std::string first_text(const std::vector<Diagnostic>& problems) {
  return problems.empty() ? std::string("bad input") : problems.front().text;
}
}  // namespace

InputError::InputError(std::vector<Diagnostic> problems) : std::runtime_error(first_text(problems)), problems_(std::move(problems)) {}
InputError::InputError(Diagnostic problem) : InputError(std::vector<Diagnostic>{std::move(problem)}) {}

EnvironmentError::EnvironmentError(Kind kind, const std::string& what, std::string help)
    : std::runtime_error(what), kind_(kind), help_(std::move(help)) {}

void invariant(bool holds, const char* what) {
  if (!holds) throw InternalError(what);
}

}  // namespace steptwin
