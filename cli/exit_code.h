// Exit codes of steptwin (DESIGN 9). Documented in `steptwin help`; scripts branch on them.
#pragma once

namespace steptwin {

enum class Exit : int {
  Ok = 0,
  CheckFailed = 1,  // ran, but --expect or validate said no
  Usage = 2,        // bad flag, bad --set, unknown run, bad SQL
  BadInput = 3,     // scenario, schedule text, machine profile
  OutOfMemory = 4,  // --allow-oom gives Ok
  Deadlock = 5,
  Environment = 6,  // file or database
  Device = 7,       // device or missing feature
  Bug = 70,
  Interrupted = 130,  // SIGINT
  Terminated = 143,   // SIGTERM
};

}  // namespace steptwin
