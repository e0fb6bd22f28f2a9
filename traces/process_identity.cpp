#include "traces/process_identity.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

namespace steptwin {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Field 22 of /proc/PID/stat, in clock ticks since boot (proc(5)). The second field may hold blanks and parentheses; the third says Z or X
// of a process that has ended.
std::string start_time(pid_t pid) {
  const std::string line = first_line("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t close = line.rfind(')');
  if (close == std::string::npos) return {};
  std::istringstream rest(line.substr(close + 1));
  std::string field;
  rest >> field;
  if (field == "Z" || field == "X") return {};
  for (int number = 4; number <= 22; ++number) rest >> field;
  return field;
}

std::string pid_namespace() {
  std::array<char, 64> buffer{};
  const ssize_t size = readlink("/proc/self/ns/pid", buffer.data(), buffer.size());
  return size > 0 ? std::string(buffer.data(), static_cast<std::size_t>(size)) : "pid";
}

std::string boot_id() {
  const std::string id = first_line("/proc/sys/kernel/random/boot_id");
  return id.empty() ? "boot" : id;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string process_identity(pid_t pid) {
  const std::string start = start_time(pid);
  return start.empty() ? start : boot_id() + " " + pid_namespace() + " " + start;
}

Liveness liveness_of(pid_t pid, const std::string& identity) {
  std::istringstream words(identity);
  std::string boot, name_space;
  words >> boot >> name_space;
  if (boot != boot_id()) return Liveness::Dead;
  if (name_space != pid_namespace()) return Liveness::Unknown;
  return process_identity(pid) == identity ? Liveness::Alive : Liveness::Dead;
}

}  // namespace steptwin
