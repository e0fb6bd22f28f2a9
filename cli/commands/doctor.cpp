// steptwin doctor: what was compiled in, what is found here.
#include <fmt/core.h>
#include <unistd.h>

#include <boost/version.hpp>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/file_system.h"
#include "exec/module.h"
#include "schedule/base/data_dir.h"
#include "schedule/machine/machine.h"
#include "steptwin_version.h"

namespace steptwin {

namespace {

struct Finding {
  const char* key;
  std::string value;
};

std::string database_state(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return "a directory";
  if (std::filesystem::exists(path, ignored)) return ::access(path.c_str(), W_OK) == 0 ? "exists" : "exists, read-only";
  const std::string folder = std::filesystem::path(absolute_path(path)).parent_path().string();
  return ::access(folder.c_str(), W_OK) == 0 ? "not there yet" : std::string("cannot be created: ") + std::strerror(errno);
}

std::string found_module(BackendKind kind, const char* otherwise) {
  const std::string path = module_path(kind);
  return path.empty() ? otherwise : path;
}

std::string machines() {
  std::string list;
  for (const std::string& name : machine_presets()) list += (list.empty() ? "" : ", ") + name;
  return list.empty() ? "none found (STEPTWIN_DATA names the folder that holds scenarios/)" : list;
}

std::vector<Finding> findings(const Options& options) {
  const std::string database = database_of(options);
  const std::string folder = std::filesystem::path(absolute_path(database)).parent_path().string();
  return {
      {"version", fmt::format("{} ({}{}, {})", kVersion, kGitSha, kGitDirty ? "-dirty" : "", kBuildType)},
      {"compiler", fmt::format("GCC-compatible {}", __VERSION__)},
      {"libraries", fmt::format("Boost {}.{}.{}, fmt {}.{}.{}, nlohmann-json {}.{}.{}", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
                                BOOST_VERSION % 100, FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100,
                                NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"sqlite", sqlite_version()},
          {"data_dir", data_dir()},
      {"machines", machines()},
      {"database", fmt::format("{} ({})", absolute_path(database), database_state(database))},
      {"database_file_system", file_system_type(folder)},
      {"cpus", std::to_string(std::thread::hardware_concurrency())},
      {"simulate", "built in"},
      {"execute", found_module(BackendKind::Cpu, "no execution module found: apt install libtorch-dev and build again")},
      {"cuda", found_module(BackendKind::Cuda, "no execution module found: build with -DSTEPTWIN_CUDA=ON (README)")}};
}

}  // namespace

Exit run_doctor(const Options& options, Session& session) {
  const std::vector<Finding> list = findings(options);
  if (format_of(options) == Format::Json) {
    nlohmann::ordered_json json{{"schema", "steptwin.doctor/1"}};
    for (const Finding& finding : list) json[finding.key] = finding.value;
    session.out.write(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    return Exit::Ok;
  }
  Table table{{"what", "found"}, {}};
  for (const Finding& finding : list) table.rows.push_back({text_cell(finding.key), text_cell(finding.value)});
  print_table(session.out, table, format_of(options), "steptwin.doctor/1");
  return Exit::Ok;
}

}  // namespace steptwin
