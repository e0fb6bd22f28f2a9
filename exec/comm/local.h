// In-process communication: all members' memory is addressable, so a transfer is a copy and a reduction a loop. Fixed order: members
// ascending, sums of 16-bit floats in fp32 with one rounding at the end; the result depends on the inputs alone.
// Sizes follow op.h: all-gather = gathered output, reduce-scatter = whole input, all-to-all = what a member sends. Shard i of n is
// bytes [i*c, (i+1)*c) with c = bytes / n rounded up; the last ones may be short.
// Throws EnvironmentError (Device) when a member's memory is too small for the payload.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/ir/op.h"

namespace steptwin {

// Several stretches of memory seen as one.
class FlatView {
 public:
  struct Stretch {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };
  FlatView() = default;
  explicit FlatView(std::vector<Stretch> stretches);

  void add(std::byte* data, std::int64_t bytes);
  std::int64_t bytes() const { return total_; }
  bool empty() const { return total_ == 0; }
  const std::vector<Stretch>& stretches() const { return stretches_; }  // as they were added
  // What lies at byte `at` and, without a gap, behind it. at < bytes().
  Stretch from(std::int64_t at) const;

 private:
  std::vector<Stretch> stretches_;
  std::vector<std::int64_t> begins_;
  std::int64_t total_ = 0;
};

// Inputs and outputs of one member, in its op's operand order. An op without accesses moves nothing: both are empty then.
struct MemberMemory {
  FlatView in, out;
};

void copy_bytes(const FlatView& from, std::int64_t from_at, const FlatView& to, std::int64_t to_at, std::int64_t bytes);

// Moves the data of one communication op. `members` ascending by member number (two for a message: sender, receiver).
void communicate(const OpBody& body, std::vector<MemberMemory>& members);

// to[i] = sum or maximum over `from` of from[k][i], k ascending; fp32 accumulation for 16-bit floats. `to` may be one of `from`.
enum class Combine : std::uint8_t { Sum, Max };
void combine(std::byte* to, const std::vector<const std::byte*>& from, std::int64_t elements, DType dtype, Combine how);

}  // namespace steptwin
