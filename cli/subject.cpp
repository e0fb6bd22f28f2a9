#include "cli/subject.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "cli/errors.h"
#include "cli/file_system.h"
#include "cli/free_memory.h"
#include "schedule/base/digest.h"
#include "schedule/compile.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "schedule/json/json_reader.h"

namespace steptwin {

namespace {

constexpr const char* kStdin = "<stdin>";

bool is_preset(const std::string& word) {
  const std::vector<std::string> presets = machine_presets();
  return std::find(presets.begin(), presets.end(), word) != presets.end();
}

// A word with a dot or slash is a file; anything else that is no preset is a mistyped preset (machine_preset_path names the nearest).
std::string profile_path(const std::string& word) {
  const bool file = !is_preset(word) && word.find_first_of("./") != std::string::npos;
  return file ? absolute_path(word) : machine_preset_path(word);
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return result + "\"";
}

// --machine replaces the whole machine of a scenario, as an override: its digest knows it, and the reader judges it.
Override machine_override(const std::string& word) {
  const std::string path = profile_path(word);
  return {"machine", is_preset(word) ? "{\"preset\": " + quoted(word) + "}" : "{\"profile\": " + quoted(path) + "}"};
}

Scenario scenario_of(const SubjectRequest& request, const std::string& text) {
  if (request.path.empty()) throw usage_error("the name of the scenario is empty");
  std::vector<Override> overrides = request.overrides;
  if (!request.machine.empty()) overrides.insert(overrides.begin(), machine_override(request.machine));  // --set machine... refines it
  return request.path == "-" ? parse_scenario(text, kStdin, overrides) : load_scenario(request.path, overrides);
}

Diagnostic no_ops(const std::string& file) {
  Diagnostic problem;
  problem.code = "EMPTY";
  problem.text = "the schedule has no ops: there is nothing to simulate";
  problem.help = "below a program line and its lanes, write for example: 0 compute F lane compute time 1ms";
  problem.place.file = file;
  return problem;
}

Subject text_subject(const SubjectRequest& request, const std::string& file, const std::string& text) {
  if (!request.overrides.empty()) throw usage_error("--set " + request.overrides.front().path + ": a schedule text has no values to set");
  Subject subject;
  subject.file = file;
  subject.name = request.path == "-" ? "stdin" : std::filesystem::path(request.path).stem().string();
  subject.order = "file";
  subject.text_sha256 = sha256_hex(text);
  subject.schedule = parse_schedule(text, file);
  if (subject.schedule.ops.empty()) throw InputError(no_ops(file));
  if (!request.machine.empty()) subject.machine = load_machine(profile_path(request.machine));
  return subject;
}

std::string display_name(const std::string& path) { return path == "-" ? kStdin : path; }

bool ends_with(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

}  // namespace

std::vector<Override> parse_overrides(const std::vector<std::string>& words) {
  std::vector<Override> overrides;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      throw usage_error("--set " + word + ": expected PATH=VALUE", "for example --set mesh.pp=8");
    overrides.push_back({word.substr(0, equals), word.substr(equals + 1)});
  }
  return overrides;
}

bool is_schedule_text(const std::string& path, const std::string& text) {
  if (path != "-") return ends_with(path, ".sched");
  const std::size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  return first != std::string::npos && text[first] != '{' && text[first] != '/';
}

SubjectRequest with_text(SubjectRequest request) {
  if (request.path == "-" && !request.text) request.text = read_text_file("-");
  return request;
}

Scenario read_scenario(const SubjectRequest& request) {
  const std::string text = request.path == "-" ? with_text(request).text.value() : std::string();
  if (is_schedule_text(request.path, text))
    throw usage_error(display_name(request.path) + " is a schedule text, not a scenario", "only show --ops works on it");
  return scenario_of(request, text);
}

Subject load_subject(const SubjectRequest& request) {
  const bool read_here = request.path == "-" || is_schedule_text(request.path, {});
  const std::string text = !read_here ? std::string() : request.text ? *request.text : read_text_file(request.path);
  if (is_schedule_text(request.path, text)) return text_subject(request, display_name(request.path), text);
  Subject subject;
  subject.file = display_name(request.path);
  subject.scenario = scenario_of(request, text);
  subject.name = subject.scenario->name;
  subject.order = subject.scenario->task == RunTask::Save ? "save" : subject.scenario->order;
  subject.machine = subject.scenario->machine;
  require_memory(rough_op_count(*subject.scenario), request.bytes_per_op);
  subject.schedule = compile(*subject.scenario);
  return subject;
}

Machine machine_named(const std::string& word) { return load_machine(profile_path(word)); }

Judgement judge(const Schedule& schedule) {
  Judgement judgement;
  judgement.problems = verify(schedule);
  for (const Diagnostic& problem : judgement.problems) {
    if (problem.severity != Severity::Error) continue;
    if (problem.code != "DEADLOCK")
      judgement.verdict = Verdict::Broken;
    else if (judgement.verdict == Verdict::Sound)
      judgement.verdict = Verdict::Deadlock;
  }
  return judgement;
}

bool is_structurally_sound(const Schedule& schedule) {
  static const std::set<std::string_view> kTolerable{"COMM-ORDER", "MISSING-SEND", "MISSING-RECV", "SIZE",  "DUP-SEND", "MESSAGE-ORDER",
                                                     "GROUP-SPLIT", "USE-BEFORE-WRITE", "RACE", "GUARD", "DEADLOCK"};
  VerifyOptions all;
  all.limit = 1'000'000;
  const std::vector<Diagnostic> problems = verify(schedule, all);
  return std::all_of(problems.begin(), problems.end(),
                     [](const Diagnostic& p) { return p.severity != Severity::Error || kTolerable.contains(p.code); });
}

}  // namespace steptwin
