// Calibration: executes schedules through a backend, round by round, and makes a measured machine of what it sees. In each round every
// schedule runs once, so that a disturbance of the machine meets all of them alike.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "exec/backend.h"
#include "exec/calibrate/tabulate.h"
#include "schedule/machine/machine.h"

namespace steptwin {

struct CalibrationSubject {
  std::string name, sha256;  // of a scenario: its name and the digest of what it resolves to
  Schedule schedule;         // sound (verify)
  bool together = false;     // copies that disturb each other on purpose: not in the rows (SweepSchedule::together)
};

class Calibration {
 public:
  // `base`: figures for what is not measured. `execute`: mode, compute slots, warm-up, steps, seed, text, stop flag of every run.
  // All ranks run in one process, so the machine is one node whatever the base says.
  Calibration(Machine base, ExecuteOptions execute, std::vector<CalibrationSubject> subjects);

  // Runs every subject once. Not ok: the outcome of the run that did not finish, and nothing of this round is to be used.
  Outcome run_round(Backend& backend);
  std::uint32_t rounds() const { return rounds_; }

  // Interp: processor time of the thread over wall time, all runs so far; below kBusy others took the processor, and wall times show it.
  static constexpr double kBusy = 0.95;
  std::optional<double> processor_share() const;

  // The base machine with what was measured so far. What the caller knows better is left to it: date, host, tool, command, environment.
  Machine machine(const std::string& backend) const;

 private:
  Machine base_;
  ExecuteOptions execute_;
  std::vector<CalibrationSubject> subjects_;
  std::vector<Matching> matchings_;  // [subject]
  Tabulator tabulator_, together_;
  std::map<std::string, std::vector<double>> facts_;  // of the probe and of the runs
  std::uint32_t rounds_ = 0;
  double wall_seconds_ = 0, thread_seconds_ = 0;
};

}  // namespace steptwin
