// Facts about the place where files lie, for doctor and export.
#pragma once

#include <string>

namespace steptwin {

std::string file_system_type(const std::string& path);  // "ext4", "overlay", "nfs", ...; "0x..." when the number has no name here
std::string absolute_path(const std::string& path);

// A file that appears whole or not at all: written as PATH.tmp.PID, renamed by commit(), removed otherwise. Throws EnvironmentError.
class AtomicFile {
 public:
  enum class Overwrite { Refuse, Allow };
  AtomicFile(std::string path, Overwrite overwrite);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  int descriptor() const { return descriptor_; }
  void commit();

 private:
  std::string path_, temporary_;
  int descriptor_ = -1;
  Overwrite overwrite_;
  bool committed_ = false;
};

}  // namespace steptwin
