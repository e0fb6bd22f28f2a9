#include "schedule/base/data_dir.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>

namespace steptwin {
namespace {

std::filesystem::path executable_dir() {
  char buffer[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", buffer, sizeof buffer - 1);
  return n <= 0 ? std::filesystem::path() : std::filesystem::path(std::string(buffer, static_cast<std::size_t>(n))).parent_path();
}

bool holds_data(const std::filesystem::path& dir) {
  std::error_code ignored;
  return std::filesystem::is_directory(dir / "scenarios", ignored);
}

}  // namespace

std::string data_dir() {
  if (const char* env = std::getenv("STEPTWIN_DATA"); env != nullptr && *env != '\0') return env;
  if (holds_data(STEPTWIN_SOURCE_DIR)) return STEPTWIN_SOURCE_DIR;
  return (executable_dir() / "../share/steptwin").lexically_normal().string();
}

}  // namespace steptwin
