#include "cli/run_record.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "schedule/machine/profile_reader.h"
#include "steptwin_version.h"

namespace steptwin {

namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string overrides_json(const std::vector<Override>& overrides) {
  Json json = Json::object();
  for (const Override& entry : overrides) json[entry.path] = entry.value;
  return dump(json);
}

}  // namespace

RunInfo run_info(const Subject& subject, const SubjectRequest& request, const Options& options, const SimulateOptions& simulation,
                 const std::string& cost_model, const Session& session) {
  RunInfo info;
  info.scenario_name = subject.name;
  info.scenario_path = subject.file;
  info.scenario_json = subject.scenario ? subject.scenario->canonical_json : dump(Json{{"schedule_text", subject.file}});
  info.scenario_sha256 = subject.scenario ? subject.scenario->sha256 : subject.text_sha256;
  info.order = subject.order;
  info.overrides_json = overrides_json(request.overrides);
  info.argv_json = dump(Json(session.arguments));
  info.machine_json = subject.machine ? machine_to_json(*subject.machine) : "{}";
  info.cost_model = cost_model;
  info.label = options.text("label");
  info.seed = options.whole("seed", 1);
  info.steps = simulation.steps;
  info.guard_value = simulation.guard_value;
  info.tool_version = kVersion;
  info.git_sha = kGitSha;
  info.git_dirty = kGitDirty;
  return info;
}

RunRecord::RunRecord(const std::string& path, const RunInfo& info, const Session& session)
    : path_(path), store_(path, Store::Access::ReadWrite) {
  print_warnings(store_, session);
  const int dead = store_.gc();
  if (dead > 0)
    session.messages.note(fmt::format("note: {} earlier run{} whose process died marked interrupted", dead, dead == 1 ? "" : "s"));
  key_ = store_.begin_run(info);
}

void RunRecord::finish(const Schedule& schedule, const std::string& digest, const Trace& trace, const std::vector<Metric>& metrics) {
  store_.finish_run(key_, schedule, digest, trace, metrics);
}

void RunRecord::interrupted() { store_.mark(key_, Status::Interrupted, "stopped by a signal"); }

void RunRecord::failed(const std::string& what) noexcept {
  try {
    store_.mark(key_, Status::Error, what);
  } catch (...) {
    // The first failure is the one the user must see; gc() repairs the row later.
  }
}

}  // namespace steptwin
