// Upper bounds that the text reader and verify hold a schedule to, so that no later sum or table can overflow.
#pragma once

#include <cstdint>

namespace steptwin {

inline constexpr std::uint64_t kMaxRanks = 1u << 20;               // a table per rank stays small; 64 times today's largest runs
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;   // of one buffer or message; 8,192 of them fit int64
inline constexpr std::int64_t kMaxProgramBytes = std::int64_t{1} << 60;  // of all buffers of a program: sums over the ranks of a node fit too
inline constexpr std::uint32_t kMaxLanes = 254;                    // the engine keeps a lane in 8 bits, the host among them
inline constexpr std::int32_t kMaxLabel = 1 << 24;                 // layer, chunk, micro-batch, slice, stage numbers
inline constexpr std::int64_t kMaxTimeNs = 1'000'000'000'000'000;  // of one op: 11 days; 9,000 of them fit int64
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 60;   // flops of a kernel, extent of a shape

}  // namespace steptwin
