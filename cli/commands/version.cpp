// steptwin version: one line, or JSON.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "steptwin_version.h"

namespace steptwin {

Exit run_version(const Options& options, Session& session) {
  const Format format = format_of(options);
  if (format == Format::Json || format == Format::Jsonl) {
    const nlohmann::ordered_json json{{"schema", "steptwin.version/1"},
                                      {"version", kVersion},
                                      {"git_sha", kGitSha},
                                      {"git_dirty", kGitDirty},
                                      {"build_type", kBuildType}};
    session.out.write(json.dump() + "\n");
    return Exit::Ok;
  }
  session.out.write(fmt::format("steptwin {} ({}{}, {})\n", kVersion, kGitSha, kGitDirty ? "-dirty" : "", kBuildType));
  return Exit::Ok;
}

}  // namespace steptwin
