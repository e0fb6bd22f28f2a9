// What simulate, validate and show look at: a schedule with everything known about where it came from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "schedule/base/diagnostic.h"
#include "schedule/ir/schedule.h"
#include "schedule/scenario.h"

namespace steptwin {

// A scenario compiled, or a schedule text. `machine` and `given` exclude each other; neither: only durations stated in the text count.
struct Subject {
  std::string file;   // as typed; "<stdin>"
  std::string name;   // of the scenario; of a schedule text the file name without its ending
  std::string order;  // "1f1b", ...; "save" for a checkpoint save; "file" for a schedule text
  std::optional<Scenario> scenario;
  std::string text_sha256;  // of a schedule text
  Schedule schedule;
  std::optional<Machine> machine;
};

// "a=b" pairs of --set in the order given. InputError (USAGE) when the = is missing.
std::vector<Override> parse_overrides(const std::vector<std::string>& words);

// Measured for gpt2 with 20,000 micro-batches (1.28 M ops): resident size of validate, of simulate, of simulate with spans and samples.
inline constexpr double kCompiledOpBytes = 320, kSimulatedOpBytes = 560, kTracedOpBytes = 880;

struct SubjectRequest {
  std::string path;  // "-" = standard input, either kind
  std::vector<Override> overrides;
  std::string machine;              // --machine: preset or profile file; empty = the subject's own
  std::optional<std::string> text;  // what standard input held
  double bytes_per_op = kCompiledOpBytes;  // memory that the caller will need: a scenario of too many ops is refused before it is compiled
};

// Standard input can be read once: with_text keeps it in the request, so that the subject can be loaded again with other overrides.
SubjectRequest with_text(SubjectRequest request);
Scenario read_scenario(const SubjectRequest& request);  // InputError (USAGE) when the path is a schedule text
Subject load_subject(const SubjectRequest& request);    // throws InputError, EnvironmentError
// A preset, or a profile file (a word with a dot or a slash), as --machine takes it.
Machine machine_named(const std::string& word);
bool is_schedule_text(const std::string& path, const std::string& text);

// verify(), judged. Warnings are kept beside.
enum class Verdict { Sound, Deadlock, Broken };
struct Judgement {
  Verdict verdict = Verdict::Sound;  // Deadlock: the only errors are deadlocks
  std::vector<Diagnostic> problems;
};
Judgement judge(const Schedule& schedule);
// Every id in range, labels and members that exist, buffers that hold their layouts: what engines and executors rely on.
bool is_structurally_sound(const Schedule& schedule);

}  // namespace steptwin
