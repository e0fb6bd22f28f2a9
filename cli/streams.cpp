#include "cli/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "schedule/base/error.h"

namespace steptwin {

namespace {
constexpr std::size_t kFlushBytes = 1 << 16;  // one write(2) per 64 KiB: a pipe's capacity
}

Output::Output(int descriptor, std::string name) : descriptor_(descriptor), name_(std::move(name)) {}

void Output::write(std::string_view text) {
  if (closed_) return;
  pending_.append(text);
  if (pending_.size() >= kFlushBytes) flush();
}

void Output::flush() {
  std::string_view rest = pending_;
  while (!rest.empty() && !closed_) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EPIPE) {
      closed_ = true;
    } else if (errno != EINTR) {
      const std::string reason = std::strerror(errno);
      pending_.clear();
      throw EnvironmentError(EnvironmentError::Kind::File, "cannot write " + name_ + ": " + reason);
    }
  }
  pending_.clear();
}

void guard_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
      const int opened = ::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
      if (opened < 0) return;  // no /dev/null: nothing more can be done, SQLite refuses such descriptors itself
    }
  }
}

}  // namespace steptwin
