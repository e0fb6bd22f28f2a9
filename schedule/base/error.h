// The three exceptions that end a run. Outcomes (out of memory, deadlock) and diagnostics are values, not exceptions.
// Caught in cli/main.cpp and at rank-thread borders, nowhere else.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "schedule/base/diagnostic.h"

namespace steptwin {

// The user can fix it: a scenario, schedule text, CSV, machine profile. Carries every problem found.
class InputError : public std::runtime_error {
 public:
  explicit InputError(std::vector<Diagnostic> problems);
  explicit InputError(Diagnostic problem);
  const std::vector<Diagnostic>& problems() const { return problems_; }

 private:
  std::vector<Diagnostic> problems_;
};

// The surroundings failed: a file, the database, a device, a driver.
class EnvironmentError : public std::runtime_error {
 public:
  enum class Kind { File, Database, Device, Memory };
  EnvironmentError(Kind kind, const std::string& what, std::string help = {});
  Kind kind() const { return kind_; }
  const std::string& help() const { return help_; }

 private:
  Kind kind_;
  std::string help_;
};

// A bug in steptwin.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws InternalError when the condition does not hold; `what` names the broken promise.
void invariant(bool holds, const char* what);

}  // namespace steptwin
