// Where bytes leave the program. Output: results (standard output, or a file being exported): every write is checked.
// A reader that went away (EPIPE) is no error: the rest is dropped in silence and closed() becomes true. Any other failure
// throws EnvironmentError (full disk: exit 6).
#pragma once

#include <string>
#include <string_view>

namespace steptwin {

class Output {
 public:
  // Writes to an open descriptor that it does not own; `name` appears in error messages.
  Output(int descriptor, std::string name);
  void write(std::string_view text);
  void flush();
  bool closed() const { return closed_; }

 private:
  int descriptor_;
  std::string name_;
  std::string pending_;
  bool closed_ = false;
};

// Opens /dev/null on 0, 1, 2 where they are closed, so that no file of ours (the database!) gets such a number.
void guard_standard_descriptors();

}  // namespace steptwin
