// A mechanism weaves ops around visits: one source behaviour, one file, one row in the table of mechanisms.cpp.
//
// Around every visit the walk calls `before` of each mechanism in table order, emits the segment's op (Segment visits), and calls
// `after` in reverse order: enter and exit nest. The whole list is visible, so a mechanism may look ahead or hold an op back.
// Mechanisms never read each other's state; they share the plan and the program's tensors, and order follows from accesses.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "schedule/mechanisms/program.h"

namespace steptwin {

class Mechanism {
 public:
  virtual ~Mechanism() = default;
  // Called when a program begins; lanes are declared here.
  virtual void begin(const Visits&, ProgramContext&) {}
  virtual void before(const Visits&, std::size_t, ProgramContext&) {}
  virtual void after(const Visits&, std::size_t, ProgramContext&) {}
};

struct MechanismRow {
  const char* name;
  bool (*active)(const Plan& plan);
  // Declares the mechanism's communicators; one object serves all programs, one after the other.
  std::unique_ptr<Mechanism> (*make)(const Plan& plan, ScheduleBuilder& builder);
};

const std::vector<MechanismRow>& mechanism_table();

}  // namespace steptwin
