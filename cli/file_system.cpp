#include "cli/file_system.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "schedule/base/error.h"

namespace steptwin {

namespace {

// statfs f_type numbers: statfs(2) and linux/magic.h.
struct Magic {
  unsigned long number;
  const char* name;
};
constexpr std::array<Magic, 15> kMagics{{{0xEF53, "ext4"},
                                         {0x58465342, "xfs"},
                                         {0x9123683E, "btrfs"},
                                         {0x01021994, "tmpfs"},
                                         {0x794C7630, "overlay"},
                                         {0x2FC12FC1, "zfs"},
                                         {0x6969, "nfs"},
                                         {0x0BD00BD0, "lustre"},
                                         {0x47504653, "gpfs"},
                                         {0xFF534D42, "cifs"},
                                         {0xFE534D42, "smb2"},
                                         {0x65735546, "fuse"},
                                         {0x01021997, "9p"},
                                         {0x858458F6, "ramfs"},
                                         {0xF2F52010, "f2fs"}}};

[[noreturn]] void file_error(const std::string& doing, const std::string& path, int error) {
  throw EnvironmentError(EnvironmentError::Kind::File, fmt::format("cannot {} {}: {}", doing, path, std::strerror(error)));
}

bool is_device(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

}  // namespace

std::string file_system_type(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return std::string("unknown: ") + std::strerror(errno);
  const auto number = static_cast<unsigned long>(info.f_type) & 0xFFFFFFFFul;
  for (const Magic& magic : kMagics) {
    if (magic.number == number) return magic.name;
  }
  return fmt::format("0x{:X}", number);
}

std::string absolute_path(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return absolute.lexically_normal().string();
}

AtomicFile::AtomicFile(std::string path, Overwrite overwrite) : path_(std::move(path)), overwrite_(overwrite) {
  const bool device = is_device(path_);  // /dev/full, a pipe: written in place
  if (std::filesystem::is_directory(path_)) file_error("write", path_, EISDIR);
  if (!device && overwrite_ == Overwrite::Refuse && ::access(path_.c_str(), F_OK) == 0) {
    throw EnvironmentError(EnvironmentError::Kind::File, path_ + " exists already", "--force overwrites it");
  }
  if (!device) temporary_ = fmt::format("{}.tmp.{}", path_, ::getpid());
  descriptor_ = ::open(device ? path_.c_str() : temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) file_error("write", path_, errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!committed_ && !temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::commit() {
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0) file_error("write", path_, errno);
  if (temporary_.empty()) return;
  // link() refuses an existing name, which rename() would replace: the file may have appeared meanwhile.
  if (overwrite_ == Overwrite::Refuse && ::link(temporary_.c_str(), path_.c_str()) == 0) return;
  if (overwrite_ == Overwrite::Refuse && errno == EEXIST)
    throw EnvironmentError(EnvironmentError::Kind::File, path_ + " exists already", "--force overwrites it");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) file_error("write", path_, errno);
  committed_ = true;
}

}  // namespace steptwin
