// Random numbers by counter: integers only, so every platform and thread draws the same bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace steptwin {

inline constexpr std::uint64_t kWordStep = 0x9e3779b97f4a7c15ull, kWordMix1 = 0xbf58476d1ce4e5b9ull, kWordMix2 = 0x94d049bb133111ebull;

// SplitMix64 (Steele, Lea, Flood 2014): word `index` of the stream `seed`.
constexpr std::uint64_t random_word(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * kWordStep;
  z = (z ^ (z >> 30)) * kWordMix1;
  z = (z ^ (z >> 27)) * kWordMix2;
  return z ^ (z >> 31);
}

// FNV-1a of the name, mixed with the run's seed.
constexpr std::uint64_t stream_of(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return random_word(hash, seed);
}

}  // namespace steptwin
