// Digests: SHA-256 for identity (scenario, schedule), a 64-bit running hash for traces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace steptwin {

// FIPS 180-4 SHA-256, incremental.
class Sha256 {
 public:
  Sha256();
  void update(const void* data, std::size_t size);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::string hex();  // finishes; 64 lower-case hex digits

 private:
  void block(const std::uint8_t* p);
  std::array<std::uint32_t, 8> state_;
  std::array<std::uint8_t, 64> buffer_{};
  std::size_t filled_ = 0;
  std::uint64_t total_ = 0;
};

std::string sha256_hex(std::string_view text);

// 64-bit order-dependent hash of integers; portable, not cryptographic.
class Hash64 {
 public:
  void add(std::uint64_t v) {
    state_ ^= v + 0x9e3779b97f4a7c15ull + (state_ << 6) + (state_ >> 2);
    state_ *= 0xff51afd7ed558ccdull;
    state_ ^= state_ >> 33;
  }
  void add_signed(std::int64_t v) { add(static_cast<std::uint64_t>(v)); }
  std::uint64_t value() const { return state_; }
  std::string hex() const;  // 16 lower-case hex digits

 private:
  std::uint64_t state_ = 0x5354574e00000001ull;
};

}  // namespace steptwin
