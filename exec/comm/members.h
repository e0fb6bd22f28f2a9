// What every in-process transport asks of the members of a communication op (private to transports): their shares, sizes that suffice, and
// the stretches in which bytes of one view lie against those of another.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "exec/comm/local.h"
#include "schedule/base/error.h"
#include "schedule/ir/schedule.h"

namespace steptwin {

// Shard `member` of `total` bytes or elements (see local.h).
inline ByteRange shard_of(std::int64_t total, std::size_t member, std::size_t members) {
  const auto n = static_cast<std::int64_t>(members), i = static_cast<std::int64_t>(member);
  const std::int64_t each = (total + n - 1) / n, first = std::min(total, i * each);
  return {first, std::min(total, first + each) - first};
}

// Throws EnvironmentError (Device) when the view is smaller.
inline void need(const FlatView& view, std::int64_t bytes, const char* what, std::size_t member) {
  if (view.bytes() >= bytes) return;
  throw EnvironmentError(EnvironmentError::Kind::Device,
                         fmt::format("member {} has {} bytes of {} where {} are needed", member, view.bytes(), what, bytes));
}

// copy(target, source, bytes) for every stretch that is dense on both sides and does not lie where it belongs already.
template <class Copy>
void each_stretch(const FlatView& from, std::int64_t from_at, const FlatView& to, std::int64_t to_at, std::int64_t bytes, Copy copy) {
  while (bytes > 0) {
    const FlatView::Stretch source = from.from(from_at), target = to.from(to_at);
    const std::int64_t size = std::min({bytes, source.bytes, target.bytes});
    if (source.data != target.data) copy(target.data, source.data, static_cast<std::size_t>(size));
    from_at += size, to_at += size, bytes -= size;
  }
}

}  // namespace steptwin
