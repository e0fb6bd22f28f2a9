// What one of several processes ends of, as the others hear of it: the value of the key `abort` of their store.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace steptwin {

struct PeerFailure {
  static constexpr char kSeparator = '\x1f';
  static constexpr char kFile = 'F', kDatabase = 'B', kDevice = 'D', kMemory = 'M', kInternal = 'I';
  static constexpr char kStopped = 'S', kHangs = 'L';  // no failures: by a signal; because all wait for each other
  char kind = kDevice;
  std::uint32_t process = 0;
  std::string help, text;

  static PeerFailure of(const std::exception_ptr& exception, std::uint32_t process);
  std::string pack() const;
  static PeerFailure unpack(const std::string& value);
  // As "process R failed: ...", of the type, kind and help that it had there.
  [[noreturn]] void rethrow() const;
};

// At most `count` parts of a text; the last one takes what is left, missing ones are empty.
std::vector<std::string> split_fields(const std::string& text, std::size_t count);

}  // namespace steptwin
