// Just enough of the protobuf wire format to write messages: tags, varints, fixed64, length-delimited fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace steptwin {

class ProtoEncoder {
 public:
  explicit ProtoEncoder(std::string& out) : out_(out) {}

  void uint(std::uint32_t field, std::uint64_t value) {
    varint(field << 3 | 0);
    varint(value);
  }
  // Negative values are sign-extended to 64 bits and take ten bytes, also for int32 fields.
  void integer(std::uint32_t field, std::int64_t value) { uint(field, static_cast<std::uint64_t>(value)); }
  void fixed64(std::uint32_t field, std::uint64_t value) {
    varint(field << 3 | 1);
    for (int i = 0; i < 8; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  void bytes(std::uint32_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    out_ += value;
  }

 private:
  void varint(std::uint64_t value) {
    while (value >= 0x80) {
      out_ += static_cast<char>((value & 0x7f) | 0x80);
      value >>= 7;
    }
    out_ += static_cast<char>(value);
  }

  std::string& out_;
};

}  // namespace steptwin
